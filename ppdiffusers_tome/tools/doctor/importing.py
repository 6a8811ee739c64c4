"""Whether Paddle and what stands on it can be imported, tried in another process, as an import may end the process.

Needs the standard library alone: what else is installed may be what is broken.
"""

from __future__ import annotations

import getpass
import importlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

STEPS = ("paddle", "paddlenlp", "ppdiffusers")  # each imports those before it
_SECONDS = 300  # a first import, from a slow disk or on a busy machine, takes minutes
_ANSWER = "ppdiffusers-tome: "  # stands before an answer, among whatever libraries print
# The other process looks for modules where this one does: neither in the working directory nor elsewhere.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ppdiffusers_tome.tools.doctor.importing import answer; answer()"
)
_IMPORTING = (__file__, importlib.__file__)
_KEPT = re.compile(r".*[/\\](?:site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]")
_QUOTED = re.compile(r"(['\"])((?:[A-Za-z]:)?[/\\].*?)\1")
_PATH = re.compile(r"(?:[A-Za-z]:\\|(?<![\w.])/)[^\s'\"():,;]+")


def try_imports() -> dict[str, dict[str, Any]]:
    """Import ``STEPS`` one after the other, as far as that goes.

    Returns:
        For each step that was tried its ``version``, or an ``error`` (one line, without private paths) and, where
        Python tells, ``raised_in``; for Paddle also what ``_paddle`` says.
    """
    command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, timeout=_SECONDS
        )
        printed, end = done.stdout, _end(done.returncode)
    except subprocess.TimeoutExpired as error:
        printed, end = error.stdout or b"", f"it took more than {_SECONDS} s"
    lines = printed.decode("utf-8", "replace").splitlines()
    answers: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line.startswith(_ANSWER):
            answers.update(json.loads(line.removeprefix(_ANSWER)))
    if len(answers) < len(STEPS) and not any("error" in each for each in answers.values()):
        answers[STEPS[len(answers)]] = {"error": end}
    return answers


def answer() -> None:
    """The other process: import and tell, step by step, as the next one may be the last."""
    for step in STEPS:
        told = _try(step)
        print(f"\n{_ANSWER}{json.dumps({step: told})}", flush=True)
        if "error" in told:
            return


def without_private(text: str) -> str:
    """A line without folders, and without the names of the user and the machine.

    Files of packages keep their path inside of ``site-packages``, others their name alone.
    """
    for folder in sorted(filter(os.path.isabs, sys.path), key=len, reverse=True):
        text = text.replace(folder + os.sep, "/site-packages/")  # also one that has spaces in its name
    text = text.replace(str(Path.home()), "/~")
    text = _QUOTED.sub(lambda found: found[1] + _short(found[2]) + found[1], text)
    text = _PATH.sub(lambda found: _short(found[0]), text)
    for name, instead in ((_user(), "USER"), (platform.node(), "HOST")):
        if name and name not in STEPS:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, text)
    return " ".join(text.split())


def _short(path: str) -> str:
    return _KEPT.sub("", path) if _KEPT.match(path) else re.split(r"[/\\]", path)[-1]


def _try(step: str) -> dict[str, Any]:
    try:
        module = importlib.import_module(step)
        told = {"version": str(getattr(module, "__version__", "unknown"))}
        return {**told, **_paddle(module)} if step == "paddle" else told
    except BaseException as error:  # whatever a library raises is what the report is for
        told = {"error": without_private(f"{type(error).__name__}: {error}")}
        places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        inside = [place for place in places if place[0] not in _IMPORTING and not place[0].startswith("<frozen")]
        if inside:
            told["raised_in"] = f"{without_private(inside[-1][0])}, line {inside[-1][1]}"
        return told


def _paddle(paddle: Any) -> dict[str, Any]:
    """How it was compiled, and the devices that it finds."""
    parts = {}
    for name in ("cuda", "cudnn", "nccl", "tensorrt", "hip", "xpu", "cinn", "mkl"):
        with suppress(Exception):
            told = str(getattr(paddle.version, name)())
            if told not in ("False", "None", "OFF", "0"):
                parts[name] = told
    found: dict[str, Any] = {"commit": paddle.version.commit, "compiled_with": parts, "device": paddle.get_device()}
    if paddle.is_compiled_with_cuda():
        cuda = paddle.device.cuda
        found["gpus"] = [
            {
                "name": cuda.get_device_name(number),
                "memory": cuda.get_device_properties(number).total_memory,
                "capability": ".".join(map(str, cuda.get_device_capability(number))),
            }
            for number in range(cuda.device_count())
        ]
    return found


def _end(status: int) -> str:
    """What is told of a process that ended before its answer."""
    with suppress(ValueError):
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}"


def _user() -> str:
    with suppress(Exception):  # where the system does not tell, each in its own way
        return getpass.getuser()
    return ""
