"""What one run of a denoiser shares among its blocks: settings, timestep, grid, destinations, live matching."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import paddle

from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.grid import Grid
from ppdiffusers_tome.matching import Matching
from ppdiffusers_tome.methods import Matcher, matcher
from ppdiffusers_tome.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.reuse import StepReuse

_REMEMBERED_INPUTS = 4096


@dataclass
class Call:
    """One call of the denoiser.

    Attributes:
        timestep: scalar or ``[batch]``; None where the model has none.
        matchers: made once a grid and shared by all blocks on it.
        matchings: what is reused, by block (None for all), grid and batch; None where nothing is.
    """

    timestep: paddle.Tensor | None = None
    matchers: dict[Grid, Matcher] = field(default_factory=dict)
    matchings: dict[tuple[Any, Grid, int], Matching] | None = None


class RunState:
    """The state behind all hooks of one denoiser.

    What belongs to a call in progress is kept by thread, so threads may share a model; it is left out of copies and
    pickles, which therefore work on their own.
    """

    def __init__(self, config: ToMeConfig) -> None:
        self._start(config)

    def _start(self, config: ToMeConfig) -> None:
        self.config = config
        self._warned: set[str] = set()
        self._thread = threading.local()
        self._inputs: OrderedDict[int, tuple[Call, Grid]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start(state["config"])

    @property
    def matching(self) -> Matching | None:
        """The matching of the block that runs now, or None when it runs unmerged.

        Made when first asked for, not when the block starts: a DiT embeds its timestep in its first block's norm.
        """
        tokens = getattr(self._thread, "tokens", None)
        if tokens is not None:
            self._thread.tokens = None
            self._thread.matching = self._match(tokens)
        return getattr(self._thread, "matching", None)

    def begin_call(self, timestep: paddle.Tensor | None, *, training: bool = False) -> None:
        """A call of the denoiser starts. ``timestep``: scalar or ``[batch]``; it stays on its device.

        But for reuse over steps: then it is read, which waits for the device once a call.
        """
        self._thread.call = call = Call(timestep)
        # Training draws its timesteps and pictures at random; a program that is being recorded has no values yet.
        if self.config.reuse_steps > 1 and timestep is not None and not training and paddle.in_dynamic_mode():
            if not hasattr(self._thread, "steps"):
                self._thread.steps = StepReuse(self.config.reuse_steps)
            call.matchings = self._thread.steps.matchings(float(timestep.reshape([-1])[0]))
        elif self.config.reuse_blocks:
            call.matchings = {}

    def enter_host(self, grid: Grid, *, will_rerun: bool) -> None:
        """Blocks that follow work on ``grid``; ``will_rerun`` when gradient checkpointing will call them again."""
        self._thread.grid, self._thread.will_rerun = grid, will_rerun
        if not hasattr(self._thread, "call"):  # a model without a timestep, or a part of one called alone
            self._thread.call = Call()

    def leave_host(self) -> None:
        self._thread.grid = None

    def enter_block(self, block: Hashable, x: paddle.Tensor) -> None:
        """A block starts on tokens ``x``, ``[batch, tokens, channels]``; ``matching`` is theirs until it ends."""
        self._thread.block, self._thread.tokens, self._thread.matching = block, x, None

    def leave_block(self) -> None:
        """The block has ended, or the rest of it runs unmerged."""
        self._thread.tokens = self._thread.matching = None

    def _match(self, x: paddle.Tensor) -> Matching | None:
        call, grid = self._context(x)
        if call is None or grid is None:
            return None
        config = self.config
        if x.ndim != 3 or x.shape[1] != grid.num_tokens:
            self.warn_once(
                "tokens",
                f"a block got tokens of shape {list(x.shape)} where its picture has {grid.height}x{grid.width} tokens; "
                "it runs unmerged",
            )
            return None
        if grid.num_merged(config.ratio) == 0:
            return None
        if grid.num_cells(config.sx, config.sy) == 0:
            self.warn_once(
                "cell",
                f"a grid of {grid.height}x{grid.width} tokens is smaller than one cell of {config.sy}x{config.sx}, so "
                "its blocks run unmerged; use a larger picture or a smaller stride",
            )
            return None
        if call.matchings is None:
            return self._matcher(call, grid)(x)
        key = (None if config.reuse_blocks else self._thread.block, grid, x.shape[0])
        if key not in call.matchings:
            call.matchings[key] = self._matcher(call, grid)(x)
        return call.matchings[key]

    def _matcher(self, call: Call, grid: Grid) -> Matcher:
        if grid not in call.matchers:
            call.matchers[grid] = matcher(self._partition(call, grid), grid, self.config)
        return call.matchers[grid]

    @paddle.no_grad()
    def _partition(self, call: Call, grid: Grid) -> Partition:
        config = self.config
        if config.use_rand:
            return random_partition(grid, config.sx, config.sy, seed=config.seed, timestep=call.timestep)
        return regular_partition(grid, config.sx, config.sy)

    def _context(self, x: paddle.Tensor) -> tuple[Call, Grid] | tuple[None, None]:
        """The call and grid that a block's input belongs to.

        Gradient checkpointing runs blocks again during the backward pass, outside their host and maybe in another
        thread, after other calls at other sizes. The block's input is then the very memory of the first run, kept
        alive for that purpose, so its address tells the runs apart.
        """
        grid = getattr(self._thread, "grid", None)
        if grid is None:
            return self._inputs.get(_address(x), (None, None))
        if self._thread.will_rerun:
            # Out and in again, so that the newest stand last and another thread never drops what is in use.
            self._inputs.pop(_address(x), None)
            self._inputs[_address(x)] = (self._thread.call, grid)
            while len(self._inputs) > _REMEMBERED_INPUTS:
                self._inputs.popitem(last=False)
        return self._thread.call, grid

    def warn_once(self, topic: str, message: str) -> None:
        """Say something once a topic, not once a block, for as long as this ToMe is attached."""
        if topic not in self._warned:
            self._warned.add(topic)
            warnings.warn(f"ToMe: {message}", stacklevel=2)


def _address(x: paddle.Tensor) -> int:
    return x.data_ptr()
