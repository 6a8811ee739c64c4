"""The settings of this package in PyTorch, for measurements on a GPU without Paddle.

It patches diffusers' ``UNet2DConditionModel`` with the same formulas as ``ppdiffusers_tome``: the same random
destinations, matchings, keys and predicted steps. ``quality.py compare`` tells how alike the images of both are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

PRIME = 2039
TINY = 1e-12
SLOPE = 0.75  # the share of the slope that a skipped step follows


@dataclass(frozen=True)
class Setting:
    """Settings of ``apply_tome``, and the steps that are computed.

    Attributes:
        name: in tables.
        ratio, sx, sy: as in ``apply_tome``.
        method: ``tome`` or ``todo``.
        skipped: calls of the denoising, by number, that the cache over steps predicts.
    """

    name: str
    ratio: float = 0.0
    sx: int = 2
    sy: int = 2
    method: str = "tome"
    skipped: frozenset[int] = frozenset()


UNMERGED = Setting("unmerged")
TOME = Setting("ratio=0.5", 0.5)
QUALITY = Setting("quality", 3 / 4, method="todo")
BALANCED = Setting("balanced", 8 / 9, 3, 3, "todo")


@dataclass
class _Call:
    """One call of the UNet: its timestep, number and partitions by grid."""

    timestep: torch.Tensor
    number: int
    time: int
    partitions: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    kept: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)


@dataclass
class _History:
    """The last computed value of a layer, and its slope over time."""

    time: int | None = None
    value: Any = None
    slope: Any = None

    def add(self, time: int, value: Any) -> None:
        if self.time is not None and time != self.time:
            self.slope = (value - self.value) / (time - self.time)
        self.time, self.value = time, value

    def predict(self, time: int) -> Any:
        if self.slope is None:
            return self.value
        return self.value + self.slope * (SLOPE * (time - self.time))


class Patch:
    """A UNet with a setting, until ``remove``; ``begin_image`` precedes each denoising."""

    def __init__(self, unet: nn.Module, setting: Setting) -> None:
        self.setting, self.call, self.histories = setting, None, {}
        self.number, self.times = 0, [0]
        self._replaced: list[nn.Module] = []
        self._wrap(unet, self._run_unet)
        levels = list(_list_transformers(unet))
        finest = min(level for level, _, _ in levels)
        for level, transformer, blocks in levels:
            if setting.ratio and level == finest:
                self._wrap(transformer, self._run_transformer)
                for block in blocks:
                    self._attach(block)
        if setting.skipped:
            self._attach_cache(unet)

    def begin_image(self, timesteps: Sequence[float] = ()) -> None:
        """Forget earlier calls; number the timesteps of a schedule."""
        distinct = list(dict.fromkeys(map(float, timesteps)))
        self.number, self.times, self.histories = 0, [distinct.index(float(t)) for t in timesteps] or [0], {}

    def remove(self) -> None:
        """Restore the forward of every layer."""
        for layer in self._replaced:
            vars(layer).pop("forward", None)

    def _wrap(self, layer: nn.Module, run: Callable[..., Any]) -> None:
        original = layer.forward  # the class's, or what was put before
        layer.forward = lambda *args, **kwargs: run(original, *args, **kwargs)
        self._replaced.append(layer)

    def _run_unet(self, original: Callable[..., Any], sample: torch.Tensor, timestep: torch.Tensor, *a: Any, **k: Any):
        self.call = _Call(timestep.reshape(-1)[:1], self.number, self.times[min(self.number, len(self.times) - 1)])
        self.number += 1
        return original(sample, timestep, *a, **k)

    def _run_transformer(self, original: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.grid = (x.shape[2], x.shape[3])
        return original(x, *args, **kwargs)

    def _attach(self, block: nn.Module) -> None:
        if self.setting.method == "todo":
            for layer in (block.attn1.to_k, block.attn1.to_v):
                self._wrap(layer, lambda original, x: original(torch.index_select(x, 1, self._select_key_tokens(x))))
            return
        tokens: list[torch.Tensor] = []

        def run_block(original: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            tokens[:] = [x]
            return original(x, *args, **kwargs)

        def run_attention(original: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            (matched,) = tokens
            tokens.clear()
            matching = match_tokens(matched, self._partition(x), int(x.shape[1] * self.setting.ratio))
            return matching.restore(original(matching.reduce(x), *args, **kwargs))

        self._wrap(block, run_block)
        self._wrap(block.attn1, run_attention)

    def _partition(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        call = self.call
        if self.grid not in call.partitions:
            call.partitions[self.grid] = random_partition(
                *self.grid, self.setting.sx, self.setting.sy, call.timestep.to(x.device)
            )
        return call.partitions[self.grid]

    def _select_key_tokens(self, x: torch.Tensor) -> torch.Tensor:
        call = self.call
        if self.grid not in call.kept:
            partition = self._partition(x)
            call.kept[self.grid] = select_key_tokens(*self.grid, self.setting, partition)
        return call.kept[self.grid]

    def _attach_cache(self, unet: nn.Module) -> None:
        coarse = [*unet.down_blocks[1:], unet.mid_block, *unet.up_blocks[:-1]]
        for layer in coarse:
            self._wrap(layer, self._skip(layer, is_used=layer is coarse[-1]))
        inside = {id(module) for layer in coarse for module in layer.modules()}
        for _, _, blocks in _list_transformers(unet):
            for block in blocks:
                if id(block) not in inside:
                    self._wrap(block, self._skip(block, is_used=True, is_residual=True))

    def _skip(self, layer: nn.Module, *, is_used: bool, is_residual: bool = False) -> Callable[..., Any]:
        def run(original: Callable[..., Any], x: Any = None, *args: Any, **kwargs: Any) -> Any:
            call, history = self.call, self.histories.setdefault(id(layer), _History())
            x = kwargs.get("hidden_states") if x is None else x
            if call.number in self.setting.skipped and history.value is not None:
                if not is_used:
                    return history.value
                predicted = history.predict(call.time)
                return x + predicted if is_residual else predicted
            output = original(*args, **kwargs) if "hidden_states" in kwargs else original(x, *args, **kwargs)
            if is_used:
                history.add(call.time, output - x if is_residual else output)
            else:
                history.value = output
            return output

        return run


def _list_transformers(unet: nn.Module) -> Iterator[tuple[int, nn.Module, list[nn.Module]]]:
    """Yield the level of each transformer, the transformer, and its blocks."""
    last = len(unet.down_blocks) - 1
    parts = [(2**index, part) for index, part in enumerate(unet.down_blocks)] + [(2**last, unet.mid_block)]
    parts += [(2 ** (last - index), part) for index, part in enumerate(unet.up_blocks)]
    for level, part in parts:
        for module in getattr(part, "attentions", None) or ():
            yield level, module, list(module.transformer_blocks)


@contextmanager
def apply_setting(unet: nn.Module, setting: Setting) -> Iterator[Patch]:
    """Apply a setting to a UNet in a ``with`` block."""
    patch = Patch(unet, setting)
    try:
        yield patch
    finally:
        patch.remove()


@lru_cache(maxsize=64)
def _list_cells(height: int, width: int, sx: int, sy: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the constants of all partitions of a grid, as ``merging/partition.py`` makes them."""
    rows, columns = height // sy * sy, width // sx * sx
    numbers = np.arange(height * width).reshape(height, width)
    cells = numbers[:rows, :columns].reshape(rows // sy, sy, columns // sx, sx)
    cells = cells.transpose(0, 2, 1, 3).reshape(-1, sx * sy)
    in_no_cell = np.ones(numbers.shape, bool)
    in_no_cell[:rows, :columns] = False
    offsets, places = cells[0] - cells[0, 0], np.arange(sx * sy)
    draw = np.random.default_rng([0, height, width, sx, sy])
    coefficients = draw.integers(0, PRIME, (3, len(cells)), dtype=np.int64)
    constants = {
        "corner": cells[:, 0], "offsets": offsets, "rest": numbers[in_no_cell],
        "source_offsets": offsets[(places[:, None] + places[1:]) % len(offsets)], "coefficients": coefficients,
    }  # fmt: skip
    return {name: torch.from_numpy(np.ascontiguousarray(value)).to(device) for name, value in constants.items()}


def random_partition(
    height: int, width: int, sx: int, sy: int, timestep: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose one destination of every cell; return sources, destinations and the random numbers."""
    cells = _list_cells(height, width, sx, sy, timestep.device)
    key = (timestep.float() * 1024.0).long() % PRIME
    quadratic, linear, constant = cells["coefficients"]
    hashed = (quadratic * key + linear) % PRIME
    hashed = (hashed * key + constant) % PRIME
    chosen = hashed % (sx * sy)
    destinations = cells["offsets"][chosen] + cells["corner"]
    sources = (cells["source_offsets"][chosen] + cells["corner"].unsqueeze(1)).flatten()
    return torch.cat([sources, cells["rest"]]), destinations, hashed


@lru_cache(maxsize=64)
def _choose_sources(count: int, num_sources: int, num_kept: int, num_rest: int, device: torch.device):
    """Choose evenly spread sources, in cells and outside of them."""
    share = (num_kept + count) / (num_kept + num_sources)
    outside = min(count, round(num_rest * share))

    def spread(count: int, number: int) -> torch.Tensor:
        return torch.arange(count, device=device) * number // max(1, count)

    return spread(count - outside, num_sources - num_rest), spread(outside, num_rest)


def select_key_tokens(
    height: int, width: int, setting: Setting, partition: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Select the tokens that give keys, as ``merging/chosen_keys.py`` does."""
    sources, destinations, hashed = partition
    num_rest = height * width - (height // setting.sy) * (width // setting.sx) * setting.sx * setting.sy
    count = len(sources) - min(int(height * width * setting.ratio), len(sources))
    inside, outside = _choose_sources(count, len(sources), len(destinations), num_rest, sources.device)
    parts = [destinations]
    if len(inside):
        parts.append(sources[inside])
    if len(outside):
        parts.append(sources[(outside + hashed[:1]) % num_rest + (len(sources) - num_rest)])
    return torch.cat(parts)


@dataclass(frozen=True)
class Matching:
    """Groups of tokens as one flat map, as in ``merging/matching.py``."""

    owner: torch.Tensor
    inverse_count: torch.Tensor
    batch: int

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Make the mean of each group, ``[batch, left, channels]``."""
        rows = x.reshape(-1, x.shape[2])
        sums = torch.zeros(len(self.inverse_count), x.shape[2], dtype=torch.float32, device=x.device)
        sums.index_add_(0, self.owner, rows.float())
        return sums.mul_(self.inverse_count).to(x.dtype).view(self.batch, -1, x.shape[2])

    def restore(self, y: torch.Tensor) -> torch.Tensor:
        """Give every token its group's result."""
        return y.reshape(-1, y.shape[2])[self.owner].view(self.batch, -1, y.shape[2])


def match_tokens(
    x: torch.Tensor, partition: tuple[torch.Tensor, torch.Tensor, torch.Tensor], num_merged: int
) -> Matching:
    """Decide which tokens merge, as ``merging/matching.py`` does."""
    sources, destinations, _ = partition
    batch, num_tokens, _ = x.shape
    wide = x.float()
    inverse_length = torch.rsqrt((wide * wide).sum(-1, keepdim=True) + TINY)
    if x.dtype == torch.float32:
        src, dst = x[:, sources], x[:, destinations] * inverse_length[:, destinations]
    else:
        unit = (wide * inverse_length).half()
        src, dst = unit[:, sources], unit[:, destinations]
    products = src @ dst.transpose(1, 2)
    nearest = products.argmax(-1)
    similarity = products.gather(2, nearest.unsqueeze(2)).squeeze(2)
    if x.dtype == torch.float32:
        similarity = similarity * inverse_length[:, sources, 0]
    num_stay, num_left = len(destinations), num_tokens - num_merged
    rank = similarity.argsort(dim=1, descending=True)
    images = torch.arange(batch, device=x.device).unsqueeze(1)
    order = torch.cat([sources[rank], destinations.expand(batch, -1)], 1) + images * num_tokens
    rows = torch.arange(batch * num_left, device=x.device).view(batch, num_left)
    first = rows[:, num_left - num_stay : num_left - num_stay + 1]
    new_rows = torch.cat([nearest.gather(1, rank[:, :num_merged]) + first, rows], 1)
    owner = torch.empty(batch * num_tokens, dtype=torch.int32, device=x.device)
    owner[order.flatten()] = new_rows.flatten().int()
    count = torch.zeros(batch * num_left, device=x.device)
    count.index_add_(0, owner, torch.ones(batch * num_tokens, device=x.device))
    return Matching(owner, count.reciprocal_().unsqueeze(1), batch)
