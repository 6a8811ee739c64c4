"""Environment report for bugs: versions, devices, memory, nothing private.

Importing this needs the standard library alone: any other package may be what is broken.
"""

import os
import platform
import re
import textwrap
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from ppdiffusers_tome.machine import PRECISIONS, has_precision
from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tools.console.process import MODULES
from ppdiffusers_tome.tools.measure.memory import get_free_memory, get_total_memory
from ppdiffusers_tome.tools.measure.system import describe_processor, find_version
from ppdiffusers_tome.tools.measure.units import format_bytes
from ppdiffusers_tome.version import __version__

TESTED = ("0.24.1", "0.29.0", "0.29.1")  # versions of ppdiffusers
_PACKAGE = "ppdiffusers-tome"
_REPORTED = ("paddlepaddle", "paddlepaddle-gpu", "ppdiffusers", "paddlenlp", "numpy")
# What each package that may be missing is for.
_OPTIONAL = {
    **dict.fromkeys(("openvino", "xxhash"), "compile_cpu, --compile"), **dict.fromkeys(MODULES, "the commands"),
}  # fmt: skip
# Variables that change what Paddle computes, how fast, or how text is read and written.
_SHOWN = re.compile(
    r"(CUDA|FLAGS|GLOG|KMP|MALLOC|MKL|NVIDIA|OMP)_\w+|PADDLE_(LOCAL_SIZE|TRAINERS_NUM|TRAINER_ID)|HF_HUB_OFFLINE"
    r"|LANG|LC_ALL|PYTHONIOENCODING|PYTHONUTF8"
)
# Their values are folders and addresses, so only their names are reported.
_HIDDEN = re.compile(r"HF_ENDPOINT|HF_HOME|https?_proxy|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH", re.IGNORECASE)
_HARMLESS_VALUE = re.compile(r"[\w.,:+-]{0,32}")


def describe_environment() -> dict[str, Any]:
    """Describe the machine and what is installed, as JSON takes it."""
    machine, computes = describe_processor(), ", ".join(each for each in PRECISIONS if has_precision(each))
    versions = {name: find_version(name) for name in _REPORTED}
    return {
        "ppdiffusers_tome": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        "processor": f"{machine['processor']}, {format_count(machine['cores'], 'core')} to use, computes in {computes}",
        "memory": _describe_memory(),
        "installed": {name: version for name, version in versions.items() if version is not None},
        "optional": _describe_optional(),
        "variables": {
            name: value if _SHOWN.fullmatch(name) and _HARMLESS_VALUE.fullmatch(value) else "(set)"
            for name, value in sorted(os.environ.items()) if _SHOWN.fullmatch(name) or _HIDDEN.fullmatch(name)
        },
    }  # fmt: skip


def format_report(report: Mapping[str, Any]) -> str:
    """Format a report for an issue, a line for each entry."""
    lines = []
    for name, value in report.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {entry}" for key, entry in value.items()) or "none"
        indent = " " * 18
        lines.append(textwrap.fill(f"{name + ':':18}{value}", 110, subsequent_indent=indent, break_on_hyphens=False))
    return "\n".join(lines)


def find_problems(imports: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Explain what is wrong, or may be, after ``try_imports``, a line each."""
    problems = []
    for name, result in imports.items():
        if "error" in result:
            problems.append(f"{name} cannot be imported: {result['error']}")
            remedy = "the documentation (installation.md) says which versions work together"
            if "[Errno " in result["error"]:  # libraries make folders as they are imported
                remedy = "set HOME to a folder that you may write to, such as HOME=/tmp"
            problems.append(remedy)
    problems += _find_version_problems()
    version = imports.get("ppdiffusers", {}).get("version", TESTED[-1])
    if version not in TESTED:
        problems.append(
            f"this package was never tested with ppdiffusers {version}, but with {', '.join(TESTED)}; compare an image "
            "with and without it before you rely on it (ppdiffusers-tome compare)"
        )
    return problems or ["all that is needed is installed and can be imported"]


def _describe_optional() -> dict[str, str]:
    """Return each module's version, or if missing what it is for."""
    packages = metadata.packages_distributions()
    return {
        name: f"missing (for {use})" if find_spec(name) is None else find_version(packages.get(name, [name])[0]) or ""
        for name, use in _OPTIONAL.items()
    }


def _describe_memory() -> str:
    try:
        return f"{format_bytes(get_total_memory())}, of it free {format_bytes(get_free_memory())}"
    except ImportError:
        return "not measured, as psutil cannot be imported"


def _find_version_problems() -> Iterator[str]:
    """Compare installed versions with the bounds of this package and its extras."""
    try:
        from packaging.requirements import Requirement
        from packaging.version import Version

        requirements = [Requirement(text) for text in metadata.requires(_PACKAGE) or ()]
    except (ImportError, metadata.PackageNotFoundError):  # a broken environment; run from its source
        return
    for requirement in requirements:
        needed = f"{requirement.name}{requirement.specifier}"
        remedy = f"and {_PACKAGE} needs {needed}: pip install '{needed}'"
        version = find_version(requirement.name)
        if version is None and requirement.marker is None:
            yield f"{requirement.name} is missing, {remedy}"
        # Builds for a CUDA version are post-releases, 3.3.1.post126.
        elif version is not None and Version(version).base_version not in requirement.specifier:
            yield f"{requirement.name} is {version}, {remedy}"
