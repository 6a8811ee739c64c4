"""What a report of a fault tells of where it happened: versions, devices, threads and memory, and nothing private.

Needs the standard library alone: what else is installed may be what is broken.
"""

from __future__ import annotations

import os
import platform
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.export.versions import installed_version
from ppdiffusers_tome.tools.doctor.importing import STEPS
from ppdiffusers_tome.tools.doctor.versions import never_tested
from ppdiffusers_tome.tools.measure.memory import get_free_memory, get_total_memory
from ppdiffusers_tome.tools.measure.system import describe_operating_system, describe_processor
from ppdiffusers_tome.tools.measure.units import format_bytes
from ppdiffusers_tome.version import __version__

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_PACKAGE = "ppdiffusers-tome"
_PADDLE = ("paddlepaddle", "paddlepaddle-gpu")
# Variables that change what Paddle computes, how fast, or how text is read and written.
_SHOWN = (
    "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "FLAGS_allocator_strategy", "FLAGS_cudnn_deterministic",
    "FLAGS_enable_pir_api", "FLAGS_fraction_of_gpu_memory_to_use", "FLAGS_sdpa_select_math", "FLAGS_selected_gpus",
    "FLAGS_use_mkldnn", "GLOG_minloglevel", "GLOG_v", "HF_HUB_OFFLINE", "KMP_AFFINITY", "LANG", "LC_ALL",
    "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MKL_DEBUG_CPU_TYPE", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "PADDLE_LOCAL_SIZE", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID", "PYTHONIOENCODING",
    "PYTHONUTF8",
)  # fmt: skip
# Of these no more than that they are set: their values are folders and addresses.
_SET = ("HF_ENDPOINT", "HF_HOME", "HTTPS_PROXY", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "https_proxy")
_IS_SET = "(set)"
_PLAIN = re.compile(r"[\w.,:+-]{0,32}")


def environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """All that is told at once, as plain values; bytes as such. Beside it belongs what ``try_imports`` finds.

    Args:
        variables: the environment as the process got it.
    """
    return {
        "ppdiffusers_tome": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": describe_operating_system(),
        **describe_processor(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "memory": get_total_memory(),
        "free_memory": get_free_memory(),
        "packages": dict(_packages()),
        "variables": {
            name: variables[name] if name in _SHOWN and _PLAIN.fullmatch(variables[name]) else _IS_SET
            for name in (*_SHOWN, *_SET) if name in variables
        },
    }  # fmt: skip


def environment_text(report: Mapping[str, Any]) -> str:
    """``environment`` in lines, as they are pasted into an issue."""
    packages = [f"{name} {told['installed'] or 'missing'}" for name, told in report["packages"].items()]
    variables = [
        f"{name}={value}" if value != _IS_SET else f"{name} is set" for name, value in report["variables"].items()
    ]
    return _lines(
        ("ppdiffusers_tome", report["ppdiffusers_tome"]),
        ("Python", report["python"]),
        ("system", report["system"]),
        ("processor", f"{report['processor']}, {report['cores']} cores to use"),
        ("threads", report["threads"] or "not set"),
        ("memory", f"{format_bytes(report['memory'])}, of it free {format_bytes(report['free_memory'])}"),
        ("installed", ", ".join(packages)),
        ("variables", ", ".join(variables) or "none of those that matter"),
    )


def imports_text(imports: Mapping[str, Any]) -> str:
    """What ``try_imports`` found, in lines."""
    rows = [(name, told.get("version", "cannot be imported")) for name, told in imports.items()]
    paddle = imports["paddle"]
    if "version" in paddle:
        compiled = ", ".join(f"{name} {version}" for name, version in paddle["compiled_with"].items())
        rows += [("paddle's commit", paddle["commit"]), ("compiled with", compiled or "none of the known libraries")]
        rows.append(("device", paddle["device"]))
        for gpu in paddle.get("gpus", ()):
            about = f"{gpu['name']}, {format_bytes(gpu['memory'])}, compute capability {gpu['capability']}"
            rows.append(("GPU", about))
    return _lines(*rows)


def findings(packages: Mapping[str, Any], imports: Mapping[str, Any]) -> list[str]:
    """What is wrong, or may be, in words: a line each.

    Args:
        packages: of ``environment``.
        imports: of ``try_imports``.
    """
    found = []
    for name, told in imports.items():
        if "error" in told:
            left = " and ".join(STEPS[STEPS.index(name) + 1 :])
            where = f" (raised in {told['raised_in']})" if "raised_in" in told else ""
            found.append(f"{name} cannot be imported: {told['error']}{where}")
            found += [f"so {left} cannot either"] * bool(left)
            found.append("the documentation (installation.md) says which versions work together")
    for name, told in packages.items():
        if not told["fits"]:
            has = f"is {told['installed']}" if told["installed"] else "is missing"
            wanted = f"{name}{told['needed'] or ''}"
            found.append(f"{name} {has}, and {_PACKAGE} needs {wanted}: pip install '{wanted}'")
    untested = never_tested(imports["ppdiffusers"]["version"]) if "version" in imports.get("ppdiffusers", {}) else None
    if untested:
        found.append(untested)
    return found or ["all that is needed is installed and can be imported"]


def _packages() -> Iterator[tuple[str, dict[str, Any]]]:
    """What this package requires, and Paddle: what is installed, what is needed, and whether that fits.

    Of Paddle's two packages the one that is there; where neither is, importing tells.
    """
    bounds: dict[str, SpecifierSet] = {}
    with suppress(metadata.PackageNotFoundError, ImportError):  # run from its source; a broken environment
        from packaging.requirements import Requirement
        from packaging.version import Version

        required = map(Requirement, metadata.requires(_PACKAGE) or ())
        bounds = {each.name: each.specifier for each in required if each.marker is None or each.name in _PADDLE}
    for name in dict.fromkeys((*_PADDLE, "ppdiffusers", "paddlenlp", "numpy", *bounds)):
        installed, needed = installed_version(name), bounds.get(name)
        if installed is not None:
            # Builds for a CUDA version are post-releases, 3.3.1.post126.
            fits = needed is None or Version(installed).base_version in needed
            yield name, {"installed": installed, "needed": str(needed or "") or None, "fits": fits}
        elif needed is not None and name not in _PADDLE:
            yield name, {"installed": None, "needed": str(needed) or None, "fits": False}


def _lines(*rows: tuple[str, str]) -> str:
    return "\n".join(
        textwrap.fill(f"{f'{name}:':18}{value}", 110, subsequent_indent=" " * 18, break_on_hyphens=False)
        for name, value in rows
    )
