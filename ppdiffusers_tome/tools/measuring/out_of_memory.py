"""Running out of memory is a result of a benchmark, not a crash of it."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

_WORDS = (
    "ResourceExhausted", "Out of memory", "out of memory", "bad_alloc", "Cannot allocate memory", "ALLOC_FAILED",
    "MemoryError",
)  # fmt: skip


def ran_out_of_memory(words: str) -> bool:
    """True when an error's or a process's last words speak of memory."""
    return any(word in words for word in _WORDS)


def was_killed(status: int) -> bool:
    """True of a process that the system ended to get memory, or that somebody killed; Windows kills with no signal."""
    kill = getattr(signal, "SIGKILL", None)
    return kill is not None and status == -kill


def die_first() -> None:
    """Should the system run out of memory, let it be this process that must go."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
