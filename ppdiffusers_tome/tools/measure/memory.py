"""Free and total memory, also of control groups, and its shortage."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

from ppdiffusers_tome.machine import list_control_groups

_SHORTAGE = re.compile("ResourceExhausted|out of memory|bad_alloc|allocate memory|ALLOC_FAILED", re.IGNORECASE)


def get_free_memory() -> int:
    """Return the bytes of memory that this process can still take."""
    import psutil

    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _list_limits())]))


def get_total_memory() -> int:
    """Return the bytes of memory that this process can take at most."""
    import psutil

    return min([psutil.virtual_memory().total, *(limit for limit, _ in _list_limits())])


def get_process_peak() -> int | None:
    """Return the peak memory of this process in bytes, on Linux."""
    with suppress(OSError):
        if peak := re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()):
            return int(peak[1]) * 1024
    return None


@contextmanager
def limit_memory() -> Iterator[None]:
    """Raise an error before Linux ends the process for its memory."""
    import paddle

    if sys.platform != "linux" or paddle.get_device() != "cpu":
        yield
        return
    import resource

    import psutil

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = psutil.Process().memory_info().data + get_free_memory() + psutil.swap_memory().free
    resource.setrlimit(resource.RLIMIT_DATA, (min([limit, *(each for each in (soft, hard) if each > 0)]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def explain_shortage(error: Exception) -> str | None:
    """Say how much memory was missing; None for another error."""
    text = str(error)
    if size := re.search(r"alloc memory of (\d+) size", text):  # of Paddle's CPU
        return f"a tensor of {int(size[1]) / 2**30:,.1f} GiB does not fit"
    is_shortage = isinstance(error, MemoryError) or _SHORTAGE.search(text)
    return text[:200] or type(error).__name__ if is_shortage else None


def _list_limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use of each control group, in bytes."""
    files = (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
    for group, (limit, use, prefix) in product(list_control_groups("memory"), files):
        with suppress(OSError, ValueError):  # on another system, or "max", which is no limit
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # Cached files make room when memory is needed.
            cached = sum(int(stat.get(f"{prefix}{name}_file", 0)) for name in ("inactive", "active"))
            yield int((group / limit).read_text()), int((group / use).read_text()) - cached
