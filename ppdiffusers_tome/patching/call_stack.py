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

    Attributes:
        frames: the calls of denoisers and in them, innermost last. While a backward pass runs layers again, they are
            those in which the layers ran first.
        end_states: of each backward pass that runs layers again, innermost last, the number of the state that ends it.
        last_state: the number of the state that Paddle asked for last, see ``recompute``.
        pipeline_call: the innermost call of a pipeline, or None.
    """

    def __init__(self) -> None:
        self.frames: tuple[Frame, ...] = ()
        self.end_states: list[int] = []
        self.last_state = 0
        self.pipeline_call: PipelineCall | None = None

    @property
    def is_recomputing(self) -> bool:
        """True while a backward pass runs layers again."""
        return bool(self.end_states)


CALL_STACK = CallStack()
# Held while overrides come or go, and while a call begins.
CHANGE_LOCK = threading.RLock()
renew_after_fork(CHANGE_LOCK)
