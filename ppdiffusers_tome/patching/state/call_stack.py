"""The running calls of denoisers, by thread; threads may share a model."""

from __future__ import annotations

import itertools
import threading
from typing import Any


class CallStack(threading.local):
    """The running ``DenoiserCall``s of one thread, innermost last."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def push(self, call: Any) -> None:
        self.calls.append(call)

    def pop(self) -> None:
        self.calls.pop()

    def current(self, attachment: object) -> Any | None:
        """Return the innermost call of a denoiser, or None."""
        for call in reversed(self.calls):
            if call.attachment is attachment:
                return call
        return None


CALL_STACK = CallStack()
# Held while overrides come or go, and while a call gets its number: a call sees all overrides of a model or none.
CHANGES = threading.RLock()
_numbers = itertools.count(1)


def next_call_number() -> int:
    """Return a number above all earlier ones; the caller holds ``CHANGES``."""
    return next(_numbers)
