"""Imports of Paddle and its dependents.

Importing this needs the standard library alone: any other package may be what is broken.
"""

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
    """Import ``STEPS`` up to the first failure, and describe each.

    It has a ``version``, or an ``error`` of one line without private paths, and Paddle also its build and devices.
    """
    for step in STEPS:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            result = _import(step)
        yield step, result
        if "error" in result:
            return


def remove_private(text: str) -> str:
    """Remove packages' folders, and the names of user and machine."""
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
    except (Exception, SystemExit) as error:  # what ends a program, too, is what the report is for
        frames = [f"{frame.filename}, line {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        inside = [frame for frame in frames if not frame.startswith((*_IMPORTERS, "<frozen"))]
        where = f" (raised in {inside[-1]})" if inside else ""
        return {"error": remove_private(f"{type(error).__name__}: {error}{where}")}


def _describe_paddle(paddle: Any) -> dict[str, str]:
    """Describe how it was compiled, and the devices that it finds."""
    result = {"commit": paddle.version.commit, "device": paddle.get_device()}
    if paddle.is_compiled_with_cuda():
        result |= {"CUDA": str(paddle.version.cuda()), "cuDNN": str(paddle.version.cudnn())}
        cuda = paddle.device.cuda
        for index in range(cuda.device_count()):
            capability = ".".join(map(str, cuda.get_device_capability(index)))
            gibibytes = cuda.get_device_properties(index).total_memory / 2**30
            result[f"GPU {index}"] = f"{cuda.get_device_name(index)}, {gibibytes:.1f} GiB, capability {capability}"
    return result
