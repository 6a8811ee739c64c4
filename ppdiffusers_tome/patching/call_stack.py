"""The running calls of denoisers, blocks, merge points and pipelines, by thread."""

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ppdiffusers_tome.patching.state.block_call import BlockCall
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.state.pipeline_call import PipelineCall
from ppdiffusers_tome.patching.state.point_call import PointCall


def renew_after_fork(lock: Any) -> None:
    """Release a lock in forked processes, where the thread that held it is gone."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # as Python does with its own locks


class StackEntry(NamedTuple):
    """Running calls: of a denoiser, maybe a block in it, maybe a merge point."""

    call: DenoiserCall
    block_call: BlockCall | None = None
    point_call: PointCall | None = None


class CallStack(threading.local):
    """The running calls of one thread."""

    pipeline_call: PipelineCall | None = None  # the innermost
    # The calls of denoisers and in them, innermost last; while a backward pass runs layers again, those in which the
    # layers ran first.
    entries: tuple[StackEntry, ...] = ()

    def run(self, entry: StackEntry, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function under an entry, removed even if it raises."""
        outer = self.entries
        try:
            self.entries = (*outer, entry)
            return function(*args, **kwargs)
        finally:
            self.entries = outer


CALL_STACK = CallStack()
# Held while overrides come or go, and while a call begins.
CHANGE_LOCK = threading.RLock()
renew_after_fork(CHANGE_LOCK)
