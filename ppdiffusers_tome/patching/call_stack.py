"""The running calls of denoisers, blocks, merge points and pipelines, by thread."""

import os
import threading
from typing import Any, NamedTuple

from ppdiffusers_tome.patching.state.calls import BlockCall, DenoiserCall
from ppdiffusers_tome.patching.state.pipeline_call import PipelineCall
from ppdiffusers_tome.patching.state.point_call import PointCall


def renew_after_fork(lock: Any) -> None:
    """Release a lock in forked processes, where the thread that held it is gone."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # as Python does with its own locks


class Frame(NamedTuple):
    """Running calls: of a denoiser, maybe a block, maybe a merge point."""

    call: DenoiserCall
    block: BlockCall | None = None
    point: PointCall | None = None


class CallStack(threading.local):
    """The running calls of one thread.

    Whoever sets ``frames`` sets them back in a ``finally`` clause, so that a call ends also if it raises.
    """

    def __init__(self) -> None:
        self.pipeline_call: PipelineCall | None = None  # the innermost
        # The calls of denoisers and in them, innermost last; while a backward pass runs layers again, those in which
        # the layers ran first.
        self.frames: tuple[Frame, ...] = ()
        # By ``recompute``: of each such backward pass, innermost last, the number of the state that ends it, and the
        # number of the state that Paddle asked for last.
        self.end_states: list[int] = []
        self.last_state = 0

    @property
    def is_recomputing(self) -> bool:
        """True while a backward pass runs layers again."""
        return bool(self.end_states)


CALL_STACK = CallStack()
# Held while overrides come or go, and while a call begins.
CHANGE_LOCK = threading.RLock()
renew_after_fork(CHANGE_LOCK)
