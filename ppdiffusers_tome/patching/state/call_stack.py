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
        is_recomputing: True while a backward pass runs layers again.
        newest_stretch: of such layers, the last for which Paddle asked, or None.
        pipeline_call: the innermost call of a pipeline, or None.
    """

    def __init__(self) -> None:
        self.calls: tuple[DenoiserCall, ...] = ()
        self.is_recomputing = False
        self.newest_stretch: weakref.ref[Stretch] | None = None
        self.pipeline_call: PipelineCall | None = None


CALL_STACK = CallStack()
# The calls of pipelines that run in any thread.
PIPELINE_CALLS: set[PipelineCall] = set()
# Held while overrides come or go, and while a call begins.
CHANGES = threading.RLock()
