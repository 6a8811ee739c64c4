"""``doctor --environment``: what a report of a fault tells, also where Paddle or ppdiffusers cannot be imported."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paddle
import ppdiffusers
import pytest

from launching import python_path
from ppdiffusers_tome.cpu.process import usable_cores
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.doctor import environment, imports
from ppdiffusers_tome.tools.doctor.environment import describe_environment, find_problems, format_report
from ppdiffusers_tome.tools.doctor.imports import remove_private

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[3]
SECRET = "hf-7351-secret"
GIVEN = {
    "USER": "janedoe", "LOGNAME": "janedoe", "GLOG_v": "1", "CUDA_VISIBLE_DEVICES": "", "KMP_AFFINITY": f"/{SECRET}",
    "HF_ENDPOINT": f"https://{SECRET}@example.org", "MY_TOKEN": SECRET,
}  # fmt: skip


def report(home: Path, *arguments: str, broken: Path | None = None, **variables: str) -> str:
    """What the program prints for a user in ``home``, with the packages of ``broken`` in place of the installed."""
    unset = ("OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "GLOG_minloglevel")
    given = {name: value for name, value in os.environ.items() if name not in unset}
    path = python_path(*filter(None, [broken]), ROOT)
    command = [sys.executable, "-c", "from ppdiffusers_tome.__main__ import program; program()", "doctor"]
    done = subprocess.run(
        [*command, "--environment", *arguments], cwd=home, capture_output=True, text=True, check=True,
        env={**given, **GIVEN, "HOME": str(home), "PYTHONPATH": path, **variables},
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "homes" / "janedoe"
    folder.mkdir(parents=True)
    return folder


def private(home: Path) -> list[str]:
    return [SECRET, "janedoe", str(home.parent), str(ROOT), sys.prefix, platform.node()]


def test_report_tells_what_is_there_and_nothing_private(home: Path) -> None:
    printed = report(home, "--json")
    told = json.loads(printed)
    assert not [word for word in private(home) if word in printed]
    assert told["python"].startswith(platform.python_version())
    assert told["imports"]["ppdiffusers"] == {"version": ppdiffusers.__version__}
    assert told["imports"]["paddle"]["version"] == paddle.__version__
    assert told["imports"]["paddle"]["device"] == paddle.get_device()
    assert told["installed"]["numpy"] == sys.modules["numpy"].__version__
    assert told["threads"] == str(usable_cores())
    # The variables are those that were given, not those that the program sets for itself.
    shown = {name: value for name, value in told["variables"].items() if name not in ("LANG", "LC_ALL")}
    hidden = dict.fromkeys(("HF_ENDPOINT", "KMP_AFFINITY", "PYTHONPATH"), "(set)")
    assert hidden.items() <= shown.items()
    assert shown["GLOG_v"] == "1"
    assert not {"OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "GLOG_minloglevel", "MY_TOKEN"} & shown.keys()


BROKEN = {
    "raises": (
        "paddle", "raise ImportError('no Secret in /homes/janedoe/x y.py, of janedoe')",
        "paddle cannot be imported: ImportError: no Secret in x y.py, of USER (raised in paddle/__init__.py, line 1)",
    ),
    "exits": ("paddle", "raise SystemExit(3)",
              "paddle cannot be imported: SystemExit: 3 (raised in paddle/__init__.py, line 1)"),
    "crashes": ("paddle", "import os; os.abort()", "paddle cannot be imported: the process was ended by SIGABRT"),
    "ends": ("paddle", "import os; os._exit(7)", "paddle cannot be imported: the process ended with status 7"),
    "hangs": ("paddle", "import time; time.sleep(600)", "paddle cannot be imported: it took more than 1 s"),
    "ppdiffusers raises": (
        "ppdiffusers", "from huggingface_hub import cached_downlod",
        "ppdiffusers cannot be imported: ImportError: cannot import name 'cached_downlod' from 'huggingface_hub' "
        "(huggingface_hub/__init__.py) (raised in ppdiffusers/__init__.py, line 1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_imported_is_told_in_words(
    case: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, code, sentence = BROKEN[case]
    (tmp_path / "broken" / package).mkdir(parents=True)
    (tmp_path / "broken" / package / "__init__.py").write_text(code.replace("/homes", str(home.parent)))
    if case == "hangs":
        monkeypatch.setattr(imports, "_SECONDS", 1)
        monkeypatch.setattr(sys, "path", [str(tmp_path / "broken"), str(ROOT), *sys.path])
        printed = "\n".join(find_problems(imports.try_imports()))
    else:
        printed = report(home, broken=tmp_path / "broken")
    lines = printed.splitlines()
    assert sentence in lines
    rest = imports.STEPS[imports.STEPS.index(package) + 1 :]
    assert not rest or f"so {' and '.join(rest)} cannot either" in lines
    assert lines[-1] == "the documentation (installation.md) says which versions work together"
    assert not [word for word in private(home) if word in printed]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("in /home/me/env/lib/python3.11/site-packages/paddle/base/core.py", "in paddle/base/core.py"),
        ("'/srv/my models/of me/x.bin' is missing", "'x.bin' is missing"),
        (r"File C:\Users\me\x.py failed", "File x.py failed"),
        ("libcudart.so.12: cannot open shared object file", "libcudart.so.12: cannot open shared object file"),
        ("either/or", "either/or"),
        (f"{Path.home()}/secret/x.so of somebody@{platform.node()}", "x.so of somebody@HOST"),
        ("two\nlines", "two lines"),
    ],
)
def test_errors_lose_folders_and_names(text: str, told: str) -> None:
    assert remove_private(text) == told


def test_versions_that_do_not_fit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"paddlenlp": "2.5.0", "paddlepaddle-gpu": "3.3.1.post126", "paddlepaddle": None, "numpy": None}
    real = environment.installed_version
    monkeypatch.setattr(environment, "installed_version", lambda name: installed.get(name, real(name)))
    problems = "\n".join(find_problems({}))
    assert "paddlenlp is 2.5.0, and ppdiffusers-tome needs paddlenlp" in problems
    assert "numpy is missing, and ppdiffusers-tome needs numpy" in problems
    assert "paddlepaddle" not in problems
    assert describe_environment({})["installed"]["paddlepaddle-gpu"] == "3.3.1.post126"
    # What reads the bounds may be what is broken.
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert find_problems({}) == ["all that is needed is installed and can be imported"]
    assert "never tested with ppdiffusers 9.9" in find_problems({"ppdiffusers": {"version": "9.9"}})[0]


def test_a_gpu_is_told_by_name() -> None:
    cuda = SimpleNamespace(
        device_count=lambda: 1, get_device_name=lambda number: "NVIDIA H200",
        get_device_properties=lambda number: SimpleNamespace(total_memory=2**37),
        get_device_capability=lambda number: (9, 0),
    )  # fmt: skip
    version = SimpleNamespace(cuda=lambda: "12.6", cudnn=lambda: "9.5", xpu=lambda: "False", commit="abc")
    built: Any = SimpleNamespace(
        version=version, device=SimpleNamespace(cuda=cuda), get_device=lambda: "gpu:0",
        is_compiled_with_cuda=lambda: True,
    )  # fmt: skip
    line = " ".join(format_report({"paddle": imports._describe_paddle(built)}).split())
    assert "device gpu:0, compiled with cuda 12.6, compiled with cudnn 9.5" in line
    assert line.endswith("GPU 0 NVIDIA H200, 128.0 GiB, capability 9.0")


def test_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import ppdiffusers_tome.tools.doctor.environment; "
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'ppdiffusers_tome'}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--json"], "--json is for --environment; give both, or neither"),
        (["--environment", "--model", "bundled"], "--environment was given with --model or --markdown; give one"),
        (["--environment", "--markdown"], "--environment was given with --model or --markdown; give one"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    assert sentence in capsys.readouterr().err
