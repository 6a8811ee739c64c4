"""CPU settings of the process: freed memory, MKL and cores. Imports no Paddle.

Importing this package sets none of them. ``ppdiffusers-tome`` calls the first two at its start, and so may any program.
"""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path

_CPU_INFO, _CPU_QUOTA = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup/cpu.max")
_MKL_VARIABLE, _AVX2 = "MKL_DEBUG_CPU_TYPE", "5"
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
_memory_is_kept = False  # a state of the process, as its memory is


def keep_freed_memory() -> bool:
    """Keep the memory that this process frees for its next tensors.

    By default large blocks go back to the system, which zeroes them again for every layer of a model. That takes up to
    a third of the time of an image on a CPU, merged or not. The process then holds its peak memory until it ends, so do
    not call this where memory is short. Call it before threads that generate are started. GPU memory is unaffected.

    Returns:
        True if freed memory is kept now; False if the C library has no such setting (only glibc, on Linux, has it).
    """
    global _memory_is_kept
    if platform.libc_ver()[0] == "glibc":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            # All blocks come from one heap that is never trimmed. Heaps of other threads would be small, and trimmed
            # whatever the threshold.
            options = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 1}
            _memory_is_kept = all(libc.mallopt(option, value) for option, value in options.items())
    return _memory_is_kept


def keeps_freed_memory() -> bool:
    """Return whether ``keep_freed_memory`` has taken effect in this process."""
    return _memory_is_kept


def let_mkl_use_avx2() -> bool:
    """Let Paddle's matrix products use AVX2 on AMD processors.

    Products and convolutions then take a half to a third of the time. Intel's MKL of 2019, in Paddle, chooses a slow
    code path on other processors unless ``MKL_DEBUG_CPU_TYPE=5`` is in the environment at the first product of the
    process. Results differ in the last bits, as between processors.

    Returns:
        True if the variable has this value now; False if it has another one, or the processor is not an AMD one with
        AVX2 on Linux.
    """
    with suppress(OSError):
        cpu_info = _CPU_INFO.read_text()
        if "AuthenticAMD" in cpu_info and " avx2" in cpu_info:
            return os.environ.setdefault(_MKL_VARIABLE, _AVX2) == _AVX2
    return False


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    with suppress(OSError, ValueError):  # "max 100000" without a quota, or usable microseconds of a period
        quota, period = _CPU_QUOTA.read_text().split()
        cores = min(cores, -(-int(quota) // int(period)))
    return cores
