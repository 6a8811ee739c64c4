"""CPU settings of the process: memory, MKL, cores. Imports no Paddle.

Importing this package sets none of them. ``ppdiffusers-tome`` calls ``prepare_cpu``, and so may any program.
"""

import ctypes
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from numbers import Integral
from pathlib import Path

from ppdiffusers_tome.settings.bounds import Bounds

_CPU_INFO, _OWN_GROUPS, _GROUPS = Path("/proc/cpuinfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_PROCESS_MEMORY = Path("/proc/self/statm")
_QUOTA_FILES = (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])  # of version 2 of control groups, and of 1
_MKL_VARIABLE, _AVX2, _THREADS_VARIABLE = "MKL_DEBUG_CPU_TYPE", "5", "OMP_NUM_THREADS"
_BLOCKTIME_VARIABLE = "KMP_BLOCKTIME"  # in milliseconds
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
# The precisions of ``compile_cpu``, and what Linux calls a processor's instructions for them. Without those for 8 bits
# sums of products would saturate at 16 bits.
PRECISIONS = {
    "float32": (),
    "bfloat16": ("amx_bf16", "avx512_bf16", "bf16"),
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni"),
}
_THREADS = Bounds(Integral, "a whole number, 1 or more, or None for one a core", 1, or_none=True)
# States of the process, as its memory is.
_memory_is_kept = False
_chosen_threads = 0  # that ``prepare_cpu`` was given last


def prepare_cpu(threads: int | None = None, *, keep_memory: bool = True) -> int:
    """Set this process up to generate fast on a CPU.

    It calls ``let_mkl_use_avx2`` and ``keep_freed_memory``, and lets Paddle use every core; without it Paddle uses one
    thread. Threads sleep after an operator, unless ``KMP_BLOCKTIME`` in the environment says otherwise. Call it before
    the first image. Images are the same but for the last bits.

    Args:
        threads: of Paddle's operators, 1 or more; None for those of an earlier call, ``OMP_NUM_THREADS`` in the
            environment, or else one a core, in a container as many as its quota allows.
        keep_memory: False where memory is short, or the CPU is shared: freed memory then goes back to the system.

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
        keep_freed_memory()
    let_mkl_use_avx2()
    let_threads_sleep()
    return threads


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


def measure_used_memory() -> int:
    """Give freed memory back, and measure what this process holds.

    Returns:
        Bytes of its own memory, without mapped files; 0 where the system does not tell.
    """
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        _, resident, shared, *_ = map(int, _PROCESS_MEMORY.read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def let_mkl_use_avx2() -> bool:
    """Let Paddle's matrix products use AVX2 on AMD processors.

    Products and convolutions then take a half to a third of the time. Intel's MKL of 2019, in Paddle, chooses a slow
    code path on other processors unless ``MKL_DEBUG_CPU_TYPE=5`` is in the environment at the first product of the
    process. Results differ in the last bits, as between processors.

    Returns:
        True if the variable has this value now; False if it has another one, or the processor is not an AMD one with
        AVX2 on Linux.
    """
    cpu_info = _read_cpu_info()
    is_meant = "AuthenticAMD" in cpu_info and " avx2" in cpu_info
    return is_meant and os.environ.setdefault(_MKL_VARIABLE, _AVX2) == _AVX2


def let_threads_sleep() -> None:
    """Let Paddle's threads sleep after an operator instead of spinning."""
    if _BLOCKTIME_VARIABLE in os.environ:
        return
    # They spin for 200 ms, on the cores that OpenVINO's threads need next.
    os.environ[_BLOCKTIME_VARIABLE] = "1"
    with suppress(OSError, AttributeError):  # Paddle is not loaded yet and will read it, or has another OpenMP
        ctypes.CDLL("libiomp5.so", mode=os.RTLD_NOLOAD).kmp_set_blocktime(1)


def choose_threads() -> int:
    """Return the threads that the user asks for, or else one a core."""
    return _chosen_threads or _read_threads() or count_usable_cores()


def has_precision(precision: str) -> bool:
    """Return whether the processor computes in a precision of ``compile_cpu``."""
    found, info = PRECISIONS[precision], _read_cpu_info()
    return not found or re.search(rf"\b({'|'.join(found)})\b", info) is not None


def explain_lack(precision: str) -> str:
    """Say that the processor lacks a precision, and what to do."""
    sets = "AMX or AVX-512 BF16" if precision == "bfloat16" else "AMX, AVX-512 VNNI or AVX-VNNI"
    return f"{precision} needs a processor that is known to compute in it ({sets}), and this one is not; give float32"


def find_processor_name() -> str | None:
    """Return the name of the processor; None where the system does not tell it."""
    name = re.search(r"model name\s*: (.+)", _read_cpu_info())
    return None if name is None else name[1].strip()


def _read_cpu_info() -> str:
    """Return what Linux tells of the processor, or ""."""
    with suppress(OSError):
        return _CPU_INFO.read_text()
    return ""


def _read_threads() -> int:
    """Return the threads that the user's environment asks for; 0 for none."""
    given = os.environ.get(_THREADS_VARIABLE, "")
    if given == "1" and "paddle" in sys.modules:  # which Paddle sets as it is imported, or the user did
        with suppress(OSError):
            return int(f"{_THREADS_VARIABLE}=1\0".encode() in Path("/proc/self/environ").read_bytes())
    return int(given) if given.isdecimal() else 0


def count_usable_cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    return min([cores, *_list_quotas()])


def _list_quotas() -> Iterator[int]:
    """Yield how many cores each control group of this process may use."""
    for group, names in product(list_control_groups("cpu"), _QUOTA_FILES):
        with suppress(OSError, ValueError):  # usable microseconds of a period; without a quota "max" or -1
            quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
            if quota > 0:
                yield -(-quota // period)


def list_control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, and those above."""
    for line in _OWN_GROUPS.read_text().splitlines() if _OWN_GROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        # Version 1 of control groups has a folder for each controller; version 2 names none.
        for folder in {"", controller} & set(controllers.split(",")):
            group = _GROUPS / folder / path.strip("/")
            # A group has the limits above it, too; a container may see its own as the topmost, and the host's path.
            yield from (group, *group.parents)
