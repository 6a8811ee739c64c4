"""Free and total memory, also of Linux's control groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_WORDS = (
    "ResourceExhausted", "Out of memory", "out of memory", "bad_alloc", "Cannot allocate memory", "ALLOC_FAILED",
    "MemoryError",
)  # fmt: skip


def get_free_memory() -> int:
    """Return the bytes of memory that this process can still take."""
    import psutil

    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _read_cgroups())]))


def get_total_memory() -> int:
    """Return the bytes of memory that this process can take at most."""
    import psutil

    return min([psutil.virtual_memory().total, *(limit for limit, _ in _read_cgroups())])


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is about memory."""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _WORDS)


def _read_cgroups() -> Iterator[tuple[int, int]]:
    """Yield limit and use of a container's control group in bytes."""
    for folder, limit, use, prefix in (
        (_CGROUP_ROOT, "memory.max", "memory.current", ""),
        (_CGROUP_ROOT / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        with suppress(OSError, ValueError):  # on another system, or "max", which is no limit
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # Cached files make room when memory is needed.
            cached = sum(int(stat.get(f"{prefix}{name}_file", 0)) for name in ("inactive", "active"))
            yield int((folder / limit).read_text()), int((folder / use).read_text()) - cached
