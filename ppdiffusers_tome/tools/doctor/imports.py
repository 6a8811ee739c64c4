"""Imports of Paddle and its dependents, and what is known of each.

Importing this needs the standard library alone: any other package may be what is broken.
"""

from __future__ import annotations

import getpass
import importlib
import io
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

STEPS = ("paddle", "paddlenlp", "ppdiffusers")  # each imports those before it
_IMPORTERS = (__file__, importlib.__file__)


def try_imports() -> Iterator[tuple[str, dict[str, str]]]:
    """Import ``STEPS`` up to the first failure, then run all methods.

    Yields:
        Each step with its ``version``, or an ``error`` of one line without private paths, and the file and line that it
        was ``raised in`` if Python knows them; for Paddle also its build and devices. After all of them ``methods``:
        how the merging methods run on the device.
    """
    for step in STEPS:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            result = _import(step)
        yield step, result
        if "error" in result:
            return
    from ppdiffusers_tome.tools.doctor.methods import check_methods

    yield "methods", {name: remove_private(value) for name, value in check_methods().items()}


def remove_private(text: str) -> str:
    """Remove folders of packages, and the names of the user and the machine."""
    for folder in sorted(filter(os.path.isabs, sys.path), key=len, reverse=True):
        text = text.replace(folder + os.sep, "")
    text = text.replace(str(Path.home()), "~")
    names = {platform.node(): "HOST"}
    with suppress(Exception):  # raised in various ways where the system does not know the user
        names[getpass.getuser()] = "USER"
    for name in names.keys() - {"", *STEPS}:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", names[name], text)
    return " ".join(text.split())


def _import(step: str) -> dict[str, str]:
    try:
        module = importlib.import_module(step)
        version = {"version": str(getattr(module, "__version__", "unknown"))}
        return {**version, **_describe_paddle(module)} if step == "paddle" else version
    except BaseException as error:  # even SystemExit is what the report is for
        result = {"error": remove_private(f"{type(error).__name__}: {error}")}
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        inside = [frame for frame in frames if frame[0] not in _IMPORTERS and not frame[0].startswith("<frozen")]
        if inside:
            result["raised in"] = f"{remove_private(inside[-1][0])}, line {inside[-1][1]}"
        return result


def _describe_paddle(paddle: Any) -> dict[str, str]:
    """Describe how it was compiled, and the devices that it finds."""
    result = {"commit": paddle.version.commit, "device": paddle.get_device()}
    for library in ("cuda", "cudnn", "nccl", "tensorrt", "hip", "xpu", "cinn", "mkl"):
        with suppress(Exception):
            version = str(getattr(paddle.version, library)())
            if version not in ("False", "None", "OFF", "0"):
                result[f"compiled with {library}"] = version
    if paddle.is_compiled_with_cuda():
        cuda = paddle.device.cuda
        for index in range(cuda.device_count()):
            capability = ".".join(map(str, cuda.get_device_capability(index)))
            gibibytes = cuda.get_device_properties(index).total_memory / 2**30
            result[f"GPU {index}"] = f"{cuda.get_device_name(index)}, {gibibytes:.1f} GiB, capability {capability}"
    return result
