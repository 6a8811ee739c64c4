"""The processor, its precisions, cores and memory. Imports no Paddle."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

_CPU_INFO, _OWN_GROUPS, _GROUPS = Path("/proc/cpuinfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_PROCESS_MEMORY = Path("/proc/self/statm")
_QUOTA_FILES = (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])  # of version 2 of control groups, and of 1
# The precisions of ``compile_cpu``, and what Linux calls a processor's instructions for them. Without those for 8 bits
# sums of products would saturate at 16 bits.
PRECISIONS = {
    "float32": (),
    "bfloat16": ("amx_bf16", "avx512_bf16", "bf16"),
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni"),
}
AUTO = "auto"


def has_precision(precision: str) -> bool:
    """Return whether the processor computes in a precision of ``compile_cpu``."""
    found, info = PRECISIONS[precision], read_cpu_info()
    return not found or re.search(rf"\b({'|'.join(found)})\b", info) is not None


def choose_float_precision() -> str:
    """Return what ``AUTO`` is: bfloat16 where the processor has it."""
    return "bfloat16" if has_precision("bfloat16") else "float32"


def explain_missing_precision(precision: str) -> str:
    """Say that the processor lacks a precision, and what to do."""
    sets = "AMX or AVX-512 BF16" if precision == "bfloat16" else "AMX, AVX-512 VNNI or AVX-VNNI"
    return f"{precision} needs a processor that is known to compute in it ({sets}), and this one is not; give float32"


def find_processor_name() -> str | None:
    """Return the processor's name; None where the system tells none."""
    name = re.search(r"model name\s*: (.+)", read_cpu_info())
    return None if name is None else name[1].strip()


def read_cpu_info() -> str:
    """Return what Linux tells of the processor, or ""."""
    with suppress(OSError):
        return _CPU_INFO.read_text()
    return ""


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


def measure_used_memory() -> int:
    """Return the bytes of this process without mapped files; 0 if unknown."""
    with suppress(OSError):
        _, resident, shared, *_ = map(int, _PROCESS_MEMORY.read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def give_memory_back() -> None:
    """Give freed memory back to the system, of which glibc keeps some."""
    with suppress(OSError, AttributeError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)
