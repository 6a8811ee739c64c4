"""A CPU at its best: freed memory kept, the fast path of Paddle's matrix products on AMD, the cores that there are.

They change the process, so a program does them for itself: ``ppdiffusers-tome`` does at its start, a program of yours
calls them. Importing this imports no Paddle.
"""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path

_PROCESSOR, _QUOTA = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup/cpu.max")
_MKL_PATH, _AVX2 = "MKL_DEBUG_CPU_TYPE", "5"
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
_kept = False  # of the whole process, as its memory is


def keep_freed_memory() -> bool:
    """Have this process keep the memory that it frees, for its next tensors, until it ends.

    Otherwise large blocks go back to the system and are fetched and zeroed again in every layer of a model, which takes
    up to a third of the time of a picture on a CPU, merged or not. The process then holds its peak memory for as long
    as it runs, so leave it on a machine that is short of memory and shared. May be called at any time, for a program
    that draws in threads before it starts them; GPUs' memory is not concerned.

    Returns:
        True where it is kept now; False where the system's C library has no such setting (all but glibc, Linux').
    """
    global _kept
    if platform.libc_ver()[0] == "glibc":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            # Every block from the heap, of the heap nothing given back, and one heap for all threads: those of other
            # threads are small, and given back whatever the threshold.
            wanted = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 1}
            _kept = all(libc.mallopt(setting, value) for setting, value in wanted.items())
    return _kept


def keeps_freed_memory() -> bool:
    """Whether ``keep_freed_memory`` was called in this process, and could do it."""
    return _kept


def let_mkl_use_avx2() -> bool:
    """Have the matrix products and convolutions of Paddle use AVX2 on an AMD processor: two to three times as fast.

    Paddle computes them on a CPU with Intel's MKL of 2019, which takes a slow path on processors of others unless
    ``MKL_DEBUG_CPU_TYPE=5`` is in the environment at its first product; this puts it there. Call it before the first
    product of the process. Results differ in the last bits, as they do between processors.

    Returns:
        True where it is set now; False where there is nothing to set: not an AMD processor with AVX2, not Linux, or
        the variable is there already with another value.
    """
    with suppress(OSError):
        processor = _PROCESSOR.read_text()
        if "AuthenticAMD" in processor and " avx2" in processor:
            return os.environ.setdefault(_MKL_PATH, _AVX2) == _AVX2
    return False


def usable_cores() -> int:
    """How many cores this process may use: of its affinity and its container's quota, rounded up; all where neither is
    told (macOS, Windows)."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    with suppress(OSError, ValueError):  # "max 100000", or microseconds of a period that may be used
        used, period = _QUOTA.read_text().split()
        cores = min(cores, -(-int(used) // int(period)))
    return cores
