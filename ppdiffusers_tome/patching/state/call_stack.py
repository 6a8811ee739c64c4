"""The running calls of denoisers and pipelines, by thread."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.calls import DenoiserCall
    from ppdiffusers_tome.patching.state.pipeline_call import PipelineCall
    from ppdiffusers_tome.patching.state.recompute import Stretch


class CallStack(threading.local):
    """The running calls of one thread.

    Attributes:
        calls: of denoisers, innermost last; while a backward pass runs layers again, those in which they ran first.
        pipeline_call: the innermost call of a pipeline, or None.
        again: the stretches that run again, innermost last, each behind the one that Paddle puts back afterwards.
        newest: the stretch that began last.
    """

    def __init__(self) -> None:
        self.calls: list[DenoiserCall] = []
        self.pipeline_call: PipelineCall | None = None
        self.again: list[tuple[Stretch | None, Stretch]] = []
        self.newest: weakref.ref[Stretch] | None = None


CALL_STACK = CallStack()
# The calls of pipelines that run in any thread.
PIPELINE_CALLS: set[PipelineCall] = set()
# Held while overrides come or go, and while a call begins.
CHANGES = threading.RLock()
