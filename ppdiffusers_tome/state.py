"""What one run of a denoiser shares among its blocks: settings, timestep, grid, destinations, live matching."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import paddle

from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.grid import Grid, Layout
from ppdiffusers_tome.matchers import Matcher, matcher
from ppdiffusers_tome.matching import Keys, Matching
from ppdiffusers_tome.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.reuse import StepReuse

_REMEMBERED_INPUTS = 4096
_TIMESTEPS = 1000  # of training: what timestep pure noise has, in all samplers but Wuerstchen's


@dataclass
class Call:
    """One call of the denoiser.

    Attributes:
        timestep: scalar or ``[batch]``; None where the model has none.
        progress: of the denoising, 0 to 1; None where no setting asks for it, or the model does not tell.
        matchers: made once a layout and shared by all blocks on it.
        matchings: what is reused, by block (None for all), layout and batch; None where nothing is.
    """

    timestep: paddle.Tensor | None = None
    progress: float | None = None
    matchers: dict[Layout, Matcher] = field(default_factory=dict)
    matchings: dict[tuple[Any, Layout, int], Matching | Keys | None] | None = None


class RunState:
    """The state behind all hooks of one denoiser.

    What belongs to a call in progress is kept by thread, so threads may share a model; it is left out of copies and
    pickles, which therefore work on their own.

    Args:
        config: the settings.
        tells_timestep: whether the model has a layer that tells when a call begins, also while a program is recorded.

    Attributes:
        watch: called whenever a block starts to merge, with what the block named itself, its layout and its matching.
            None, as it is in copies and pickles too, costs nothing.
    """

    def __init__(self, config: ToMeConfig, *, tells_timestep: bool = True) -> None:
        self._start(config, tells_timestep)

    def _start(self, config: ToMeConfig, tells_timestep: bool) -> None:
        self.config, self._tells_timestep = config, tells_timestep
        self.watch: Callable[[Any, Layout, Matching | Keys], None] | None = None
        self._warned: set[str] = set()
        self._thread = threading.local()
        self._inputs: OrderedDict[int, tuple[Call, Layout]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "tells_timestep": self._tells_timestep}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start(**state)

    @property
    def matching(self) -> Matching | Keys | None:
        """The matching of the block that runs now, or None when it runs unmerged.

        Made when first asked for, not when the block starts: a DiT embeds its timestep in its first block's norm.
        """
        tokens = getattr(self._thread, "tokens", None)
        if tokens is not None:
            self._thread.tokens = None
            self._thread.matching = self._match(tokens)
        return getattr(self._thread, "matching", None)

    @property
    def unasked(self) -> bool:
        """True when the block that runs now has not asked for its matching."""
        return getattr(self._thread, "tokens", None) is not None

    def begin_call(self, timestep: paddle.Tensor | None, *, training: bool = False) -> None:
        """A call of the denoiser starts. ``timestep``: scalar or ``[batch]``; it stays on its device.

        But for a schedule and reuse over steps: then it is read, which waits for the device once a call.

        Raises:
            ToMeValueError: a program is being recorded that would have to read it.
        """
        self._thread.call = call = Call(timestep)
        if self.config.by_progress:
            call.progress = self._progress(timestep)
        # Training draws its timesteps and pictures at random; a program that is being recorded has no values yet.
        if self.config.reuse_steps > 1 and timestep is not None and not training and paddle.in_dynamic_mode():
            if not hasattr(self._thread, "steps"):
                self._thread.steps = StepReuse(self.config.reuse_steps)
            call.matchings = self._thread.steps.matchings(float(timestep.reshape([-1])[0]))
            return
        if self.config.reuse_steps > 1 and timestep is None:
            self.warn_once(
                "timestep",
                "this model does not tell its timestep, so reuse_steps has no effect here; reuse_blocks has",
            )
        if self.config.reuse_blocks:
            call.matchings = {}

    def _progress(self, timestep: paddle.Tensor | None) -> float | None:
        if timestep is None:
            self.warn_once(
                "progress",
                "this model does not tell its timestep, so a ratio that changes, start and end cannot be followed and "
                "it runs unmerged; give one ratio for the whole denoising",
            )
            return None
        _refuse_recording("a ratio that changes over the denoising, start or end")
        progress = 1 - float(timestep.reshape([-1])[0]) / _TIMESTEPS
        return min(max(progress, 0.0), 1.0)

    def enter_host(self, layout: Layout, *, will_rerun: bool) -> None:
        """Blocks that follow work on tokens laid out so.

        ``will_rerun``: gradient checkpointing will call them again.

        Raises:
            ToMeValueError: a program is being recorded for any height or width.
        """
        if min(layout.grid.height, layout.grid.width) < 0:
            _refuse_recording("an open height or width")
        self._thread.layout, self._thread.will_rerun = layout, will_rerun
        recording_afresh = not self._tells_timestep and not paddle.in_dynamic_mode()
        if recording_afresh or not hasattr(self._thread, "call"):  # or a part of a model called alone
            self._thread.call = Call()

    def leave_host(self) -> None:
        self._thread.layout = None

    def enter_block(self, block: Hashable, x: paddle.Tensor | None) -> None:
        """A block starts on tokens ``x``, ``[batch, tokens, channels]`` or ``[batch, channels, height, width]``.

        ``matching`` is theirs until it ends. None where they are not seen yet; ``see_tokens`` then follows.
        """
        self._thread.block, self._thread.input, self._thread.tokens = block, x, x
        self._thread.matching = self._thread.section = None

    def see_tokens(self, x: paddle.Tensor) -> None:
        """The tokens of the block that runs now, where they differ from what it was called with."""
        self._thread.tokens = x

    def leave_block(self) -> None:
        """The block has ended, or the rest of it runs unmerged."""
        self._thread.tokens = self._thread.input = self._thread.matching = self._thread.section = None

    @property
    def section(self) -> Any:
        """The section of the block whose tokens are merged now, as it named itself, or None."""
        return getattr(self._thread, "section", None)

    @section.setter
    def section(self, section: Any) -> None:
        self._thread.section = section

    def _match(self, x: paddle.Tensor) -> Matching | Keys | None:
        call, layout = self._context(x)
        if call is None or layout is None:
            return None
        config, grid, given = self.config, layout.grid, list(x.shape)
        if x.ndim == 4 and given[2:] == [grid.height, grid.width]:
            x = x.flatten(2).transpose([0, 2, 1])
        if x.ndim != 3 or x.shape[1] != layout.num_tokens:
            self.warn_once(
                "tokens",
                f"a block got tokens of shape {given} where its picture has {grid.height}x{grid.width} tokens"
                f"{f' behind {layout.prefix} others' if layout.prefix else ''}; it runs unmerged",
            )
            return None
        if grid.num_merged(self._ratio(call, layout)) == 0:
            return None
        if config.min_similarity is not None:
            _refuse_recording("min_similarity")
        if grid.num_cells(config.sx, config.sy) == 0:
            self.warn_once(
                "cell",
                f"a grid of {grid.height}x{grid.width} tokens is smaller than one cell of {config.sy}x{config.sx}, so "
                "its blocks run unmerged; use a larger picture or a smaller stride",
            )
            return None
        matching = self._made_or_reused(call, layout, x)
        if self.watch is not None and matching is not None:
            self.watch(self._thread.block, layout, matching)
        return matching

    def _ratio(self, call: Call, layout: Layout) -> float:
        if self.config.by_progress and call.progress is None:
            return 0.0
        return self.config.ratio_at(layout.level, call.progress)

    def _made_or_reused(self, call: Call, layout: Layout, x: paddle.Tensor) -> Matching | Keys | None:
        if call.matchings is None:
            return self._matcher(call, layout)(x)
        key = (None if self.config.reuse_blocks else self._thread.block, layout, x.shape[0])
        if key not in call.matchings:
            call.matchings[key] = self._matcher(call, layout)(x)
        return call.matchings[key]

    def _matcher(self, call: Call, layout: Layout) -> Matcher:
        if layout not in call.matchers:
            partition = self._partition(call, layout.grid).after(layout.prefix)
            num_merged = layout.grid.num_merged(self._ratio(call, layout))
            call.matchers[layout] = matcher(partition, layout.grid, self.config, num_merged)
        return call.matchers[layout]

    @paddle.no_grad()
    def _partition(self, call: Call, grid: Grid) -> Partition:
        config = self.config
        if config.use_rand:
            return random_partition(grid, config.sx, config.sy, seed=config.seed, timestep=call.timestep)
        return regular_partition(grid, config.sx, config.sy)

    def _context(self, x: paddle.Tensor) -> tuple[Call, Layout] | tuple[None, None]:
        """The call and layout that a block's tokens belong to.

        Gradient checkpointing runs blocks again during the backward pass, outside their host and maybe in another
        thread, after other calls at other sizes. The block's input is then the very memory of the first run, kept
        alive for that purpose, so its address tells the runs apart.
        """
        layout = getattr(self._thread, "layout", None)
        if layout is not None and not self._thread.will_rerun:
            return self._thread.call, layout
        address = (x if self._thread.input is None else self._thread.input).data_ptr()
        if layout is None:
            return self._inputs.get(address, (None, None))
        # Out and in again, so that the newest stand last and another thread never drops what is in use.
        self._inputs.pop(address, None)
        self._inputs[address] = (self._thread.call, layout)
        while len(self._inputs) > _REMEMBERED_INPUTS:
            self._inputs.popitem(last=False)
        return self._thread.call, layout

    def warn_once(self, topic: str, message: str) -> None:
        """Say something once a topic, not once a block, for as long as this ToMe is attached."""
        if topic not in self._warned:
            self._warned.add(topic)
            warnings.warn(f"ToMe: {message}", stacklevel=2)


def _refuse_recording(what: str) -> None:
    """A program that is being recorded has no values yet, and its shapes are fixed."""
    if not paddle.in_dynamic_mode():
        raise ToMeValueError(
            f"{what} cannot become part of a program, which fixes how many tokens merge; apply_tome with one ratio and "
            "without it before exporting"
        )
