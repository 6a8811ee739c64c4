"""The running calls of denoisers, blocks, merge points and pipelines, by thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.block_call import BlockCall, PointCall
    from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
    from ppdiffusers_tome.patching.state.pipeline_call import PipelineCall
    from ppdiffusers_tome.patching.state.recompute import Stretch


class Frame(NamedTuple):
    """Running calls: of a denoiser, maybe a block, maybe a merge point."""

    call: DenoiserCall
    block: BlockCall | None = None
    point: PointCall | None = None


class CallStack(threading.local):
    """The running calls of one thread.

    Attributes:
        frames: the calls of denoisers and in them, innermost last. While a backward pass runs layers again, they are
            those in which the layers ran first.
        returns: the calls to return to from each backward pass that runs layers again, innermost last.
        last_stretch: the last for which Paddle asked, see ``recompute``; None before.
        pipeline_call: the innermost call of a pipeline, or None.
    """

    def __init__(self) -> None:
        self.frames: tuple[Frame, ...] = ()
        self.returns: list[Stretch | None] = []
        self.last_stretch: weakref.ref[Stretch] | None = None
        self.pipeline_call: PipelineCall | None = None

    @property
    def is_recomputing(self) -> bool:
        """True while a backward pass runs layers again."""
        return bool(self.returns)

    @contextmanager
    def push(self, frame: Frame) -> Iterator[None]:
        """Make calls the innermost ones until they end, also if they raise."""
        outer = self.frames
        self.frames = (*outer, frame)
        try:
            yield
        finally:
            self.frames = outer


CALL_STACK = CallStack()
# The calls of pipelines that run in any thread.
PIPELINE_CALLS: set[PipelineCall] = set()
# Held while overrides come or go, and while a call begins.
CHANGES = threading.RLock()
