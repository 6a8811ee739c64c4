"""Recognize that memory ran out, which is a result of a benchmark."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

EXIT_STATUS = 77  # of a process that ends for want of memory and can still tell
_WORDS = (
    "ResourceExhausted", "Out of memory", "out of memory", "bad_alloc", "Cannot allocate memory", "ALLOC_FAILED",
    "MemoryError",
)  # fmt: skip


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is about memory."""
    return isinstance(error, MemoryError) or _mentions_memory(str(error))


def is_memory_exit(status: int, output: str) -> bool:
    """Return whether a process ended for want of memory.

    Args:
        status: with which it ended; the system kills with SIGKILL when memory runs out.
        output: its last words on standard error.
    """
    kill = getattr(signal, "SIGKILL", None)  # Windows kills with no signal
    return status == EXIT_STATUS or (status < 0 and (status == -(kill or 0) or _mentions_memory(output)))


def die_first() -> None:
    """Have the system kill this process first when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _mentions_memory(text: str) -> bool:
    return any(word in text for word in _WORDS)
