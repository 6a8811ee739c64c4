"""The running calls of denoisers and pipelines, by thread; threads may share a model."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.calls import DenoiserCall
    from ppdiffusers_tome.patching.state.pipeline_call import PipelineCall


class CallStack(threading.local):
    """The running calls of one thread.

    Attributes:
        calls: of denoisers, innermost last.
        pipeline_call: the innermost call of a pipeline, or None.
    """

    def __init__(self) -> None:
        self.calls: list[DenoiserCall] = []
        self.pipeline_call: PipelineCall | None = None


CALL_STACK = CallStack()
# Held while overrides come or go, and while a call gets its number: a call sees all overrides of a model or none.
CHANGES = threading.RLock()
_numbers = itertools.count(1)


def next_call_number() -> int:
    """Return a number above all earlier ones; the caller holds ``CHANGES``."""
    return next(_numbers)
