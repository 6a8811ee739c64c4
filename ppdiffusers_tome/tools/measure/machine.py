"""The machine: what a measurement was made on, and what a report of a fault tells of it."""

from __future__ import annotations

import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdiffusers_tome.cpu.process import keeps_freed_memory, usable_cores
from ppdiffusers_tome.tools.measure.control_groups import memory_left, memory_limits

_MEMORY = Path("/proc/meminfo")


def measured_on() -> dict[str, Any]:
    """What a reader must know to repeat a measurement."""
    import paddle
    import ppdiffusers

    return {
        "device": paddle.get_device(),
        **processor(),
        "threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "MKL on AMD": os.environ.get("MKL_DEBUG_CPU_TYPE", "as it chooses"),
        "freed memory": "kept" if keeps_freed_memory() else "given back",
        "paddle": paddle.__version__,
        "ppdiffusers": ppdiffusers.__version__,
    }


def free_memory() -> dict[str, int]:
    """Bytes that Linux could still hand to this process, by its own names: ``MemAvailable``, ``SwapFree``.

    No more than its control groups let it have, as in a container. Empty elsewhere.
    """
    limits = memory_left()
    told = _told("MemAvailable", "SwapFree")
    return {name: min(number, limits.get(name, sys.maxsize)) for name, number in told.items()}


def all_memory() -> int | None:
    """Bytes that this process could have at the most, the machine's or its container's; None where nothing tells."""
    return min([*_told("MemTotal").values(), *memory_limits()], default=None)


def _told(*names: str) -> dict[str, int]:
    """Bytes by the names that Linux has for them; none elsewhere."""
    with suppress(OSError):
        told = re.findall(r"^(\w+):\s+(\d+) kB", _MEMORY.read_text(), re.MULTILINE)
        return {name: int(number) * 1024 for name, number in told if name in names}
    return {}


def operating_system() -> str:
    """Its name and version: ``Debian GNU/Linux 12 (bookworm), Linux 6.1.0 x86_64, glibc 2.36``."""
    names = [" ".join((platform.system(), platform.release(), platform.machine())), " ".join(platform.libc_ver())]
    with suppress(OSError):
        names.insert(0, platform.freedesktop_os_release()["PRETTY_NAME"])
    return ", ".join(filter(None, names))


def processor() -> dict[str, Any]:
    """The processor's name and its cores that this process may use."""
    return {"processor": _name(), "cores": usable_cores()}


def _name() -> str:
    """As Linux tells it, otherwise whatever Python knows."""
    with suppress(OSError):
        name = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        if name:
            return name[1].strip()
    return platform.processor() or platform.machine()
