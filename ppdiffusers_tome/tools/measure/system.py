"""Descriptions of the machine that measurements were made on."""

import os
import platform
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from ppdiffusers_tome.cpu import keeps_freed_memory
from ppdiffusers_tome.machine import count_usable_cores, find_processor_name
from ppdiffusers_tome.version import __version__


def describe_machine() -> dict[str, Any]:
    """Describe what is needed to repeat a measurement."""
    return {
        "device": get_device_name(),
        **describe_processor(),
        "threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        "MKL_DEBUG_CPU_TYPE": os.environ.get("MKL_DEBUG_CPU_TYPE", "unset"),  # matters on AMD
        "freed memory": "kept" if keeps_freed_memory() else "given back",
        **describe_versions(),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of this package and the libraries below it."""
    import paddle
    import ppdiffusers

    libraries = {"paddle": paddle.__version__, "ppdiffusers": ppdiffusers.__version__}
    return {"ppdiffusers_tome": __version__, **libraries}


def get_device_name() -> str:
    """Return ``CPU`` or the GPU's name."""
    import paddle

    device = paddle.get_device()
    return paddle.device.cuda.get_device_name() if device.startswith("gpu") else device.upper()


def has_only_cpu() -> bool:
    """Return whether Paddle, not imported yet, is for CPUs alone."""
    is_plain = find_version("paddlepaddle") is not None and find_version("paddlepaddle-gpu") is None
    return is_plain and not os.environ.get("CUSTOM_DEVICE_ROOT") and find_spec("paddle_custom_device") is None


def describe_processor() -> dict[str, Any]:
    """Return the processor's name and the usable number of cores."""
    processor = find_processor_name() or platform.processor() or platform.machine()
    return {"processor": processor, "cores": count_usable_cores()}


def find_version(package: str) -> str | None:
    """Return a package's version by its registry name, or None without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
