"""Running out of memory is a result of a benchmark, not a crash of it."""

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
    """True of an error that is about memory."""
    return isinstance(error, MemoryError) or ran_out_of_memory(str(error))


def ran_out_of_memory(words: str) -> bool:
    """True when an error's or a process's last words speak of memory."""
    return any(word in words for word in _WORDS)


def memory_ended(status: int, kills_before: int | None, words: str) -> bool:
    """True of a process that ended for want of memory: its status or its last words say so, or the system killed it.

    Args:
        status: with which it ended.
        kills_before: ``num_memory_kills()`` of before it began.
        words: its last on standard error.
    """
    kill = getattr(signal, "SIGKILL", None)  # Windows kills with no signal
    if kill is not None and status == -kill:  # somebody else may have killed it
        return kills_before is None or num_memory_kills() != kills_before
    return status == EXIT_STATUS or (status < 0 and ran_out_of_memory(words))


def num_memory_kills() -> int | None:
    """How many processes the system has killed to get memory; None where it keeps no count."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def die_first() -> None:
    """Should the system run out of memory, let it be this process that must go."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
