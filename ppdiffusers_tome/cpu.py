"""CPU settings of the process: memory, MKL, threads. Imports no Paddle.

Importing this package sets none of them. ``ppdiffusers-tome`` calls ``prepare_cpu``, and so may any program.
"""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from numbers import Integral
from pathlib import Path

from ppdiffusers_tome.machine import count_usable_cores, read_cpu_info
from ppdiffusers_tome.settings.bounds import Bounds

_MKL_VARIABLE, _MKL_AVX2, _THREADS_VARIABLE = "MKL_DEBUG_CPU_TYPE", "5", "OMP_NUM_THREADS"
_BLOCKTIME_VARIABLE = "KMP_BLOCKTIME"  # in milliseconds
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
_THREADS = Bounds(Integral, "a whole number, 1 or more, or None for one a core", 1, or_none=True)
# States of the process, as its memory is.
_memory_is_kept = False
_chosen_threads = 0  # the last number that ``prepare_cpu`` was given; 0 before


def prepare_cpu(threads: int | None = None, *, keep_memory: bool = True) -> int:
    """Set this process up to generate fast on a CPU.

    Paddle then uses all cores; by default it uses one. Its threads sleep after an operator, unless ``KMP_BLOCKTIME`` in
    the environment says otherwise. On AMD processors its matrix products use AVX2, which takes a half to a third of the
    time, unless ``MKL_DEBUG_CPU_TYPE`` is set. Call it before the first image, and before threads that generate are
    started. Images are the same but for the last bits.

    Args:
        threads: of Paddle's operators, 1 or more. None takes the first that is known, in this order: that of an earlier
            call, ``OMP_NUM_THREADS`` in the environment, the number of cores (in a container at most its quota).
        keep_memory: keep memory that is freed for the next tensors. Otherwise large blocks go back to the system, which
            zeroes them again for every layer; that takes up to a third of an image's time. The process then holds its
            peak memory until it ends, so give False where memory is short, or the CPU is shared. glibc on Linux alone.

    Returns:
        The number of threads.

    Raises:
        ToMeTypeError, ToMeValueError: ``threads`` is not a whole number, or below 1.

    Example:
        >>> from ppdiffusers_tome import prepare_cpu
        >>> prepare_cpu()  # doctest: +SKIP
        2
    """
    global _chosen_threads
    _chosen_threads = _THREADS.check("threads", threads) or _chosen_threads
    threads = choose_threads()
    os.environ[_THREADS_VARIABLE] = str(threads)
    if "paddle" in sys.modules:
        sys.modules["paddle"].base.core.set_num_threads(threads)
    if keep_memory:
        _keep_freed_memory()
    let_mkl_use_avx2()
    _let_threads_sleep()
    return threads


def choose_threads() -> int:
    """Return the threads that the user asks for, or else one a core."""
    return _chosen_threads or _read_threads() or count_usable_cores()


def keeps_freed_memory() -> bool:
    """Return whether this process keeps freed memory for its next tensors."""
    return _memory_is_kept


def let_mkl_use_avx2() -> None:
    """Let Paddle's matrix products use AVX2 on AMD processors.

    Intel's MKL of 2019, in Paddle, chooses a slow code path on other processors unless ``MKL_DEBUG_CPU_TYPE=5`` is in
    the environment at the first product of the process.
    """
    cpu_info = read_cpu_info()
    if "AuthenticAMD" in cpu_info and " avx2" in cpu_info:
        os.environ.setdefault(_MKL_VARIABLE, _MKL_AVX2)


def _keep_freed_memory() -> None:
    global _memory_is_kept
    if platform.libc_ver()[0] == "glibc":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            # All blocks come from one heap that is never trimmed. Heaps of other threads would be small, and trimmed
            # whatever the threshold.
            options = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 1}
            _memory_is_kept = all(libc.mallopt(option, value) for option, value in options.items())


def _let_threads_sleep() -> None:
    if _BLOCKTIME_VARIABLE in os.environ:
        return
    # They spin for 200 ms, on cores that other threads need, such as OpenVINO's.
    os.environ[_BLOCKTIME_VARIABLE] = "1"
    with suppress(OSError, AttributeError):  # Paddle is not loaded yet and will read it, or has another OpenMP
        ctypes.CDLL("libiomp5.so", mode=os.RTLD_NOLOAD).kmp_set_blocktime(1)


def _read_threads() -> int:
    """Return the threads that the user's environment asks for; 0 for none."""
    given = os.environ.get(_THREADS_VARIABLE, "")
    if given == "1" and "paddle" in sys.modules:  # which Paddle sets as it is imported, or the user did
        with suppress(OSError):
            return int(f"{_THREADS_VARIABLE}=1\0".encode() in Path("/proc/self/environ").read_bytes())
    return int(given) if given.isdecimal() else 0
