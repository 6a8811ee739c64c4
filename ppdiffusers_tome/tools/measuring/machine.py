"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdiffusers_tome.cpu.process import keeps_freed_memory, usable_cores
from ppdiffusers_tome.tools.measuring.control_groups import memory_left

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
    with suppress(OSError):
        told = re.findall(r"(MemAvailable|SwapFree):\s+(\d+) kB", _MEMORY.read_text())
        limits = memory_left()
        return {name: min(int(number) * 1024, limits.get(name, sys.maxsize)) for name, number in told}
    return {}


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
