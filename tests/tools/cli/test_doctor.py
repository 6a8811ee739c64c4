"""``doctor``: what helps in a bug report, also where Paddle or ppdiffusers cannot be imported."""

import os
import platform
import sys
from pathlib import Path

import numpy as np
import paddle
import ppdiffusers
import pytest

from environment import python_path, run_python
from ppdiffusers_tome.tools.doctor import environment
from ppdiffusers_tome.tools.doctor.environment import describe_environment, find_problems
from ppdiffusers_tome.tools.measure.system import find_version

ROOT = Path(__file__).parents[3]
SECRET = "hf-7351-secret"
VARIABLES = {
    "USER": "janedoe", "LOGNAME": "janedoe", "GLOG_v": "1", "CUDA_VISIBLE_DEVICES": "", "KMP_AFFINITY": f"/{SECRET}",
    "HF_ENDPOINT": f"https://{SECRET}@example.org", "MY_TOKEN": SECRET,
}  # fmt: skip


def report(home: Path, before: str = "", exit_code: int = 0, **broken: str) -> str:
    """Print the report of a user in ``home``, with these modules in place of the installed."""
    for name, code in broken.items():
        path = home.parents[1] / "broken" / name / "__init__.py"
        path.parent.mkdir(parents=True)
        path.write_text(code)
    path = f"{home.parents[1] / 'broken'}{os.pathsep}{python_path(ROOT)}"
    code = f"{before}\nfrom ppdiffusers_tome.__main__ import program; program()"
    environment = {**VARIABLES, "HOME": str(home), "PYTHONPATH": path}
    done = run_python("-c", code, "doctor", cwd=home, **environment)
    assert done.returncode == exit_code
    assert exit_code != 2 or "cannot be imported: " in done.stderr
    assert not [word for word in (SECRET, "janedoe", str(ROOT), sys.prefix, platform.node()) if word in done.stdout]
    return done.stdout


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "homes" / "janedoe"
    folder.mkdir(parents=True)
    return folder


def test_report_has_versions_and_variables_but_nothing_private(home):
    text = " ".join(report(home).split())
    for words in (
        f"python: {platform.python_version()}", f"paddle: version {paddle.__version__}", f"numpy {np.__version__}",
        f"device {paddle.get_device()}", f"ppdiffusers: version {ppdiffusers.__version__}",
        "HF_ENDPOINT (set)", "KMP_AFFINITY (set)", "PYTHONPATH (set)", "GLOG_v 1",
    ):  # fmt: skip
        assert words in text
    assert "MY_TOKEN" not in text


@pytest.mark.parametrize(("package", "code", "sentence"), [
    ("paddle", "raise ImportError('no file /homes/janedoe/x y.py, of janedoe')",
     "paddle cannot be imported: ImportError: no file ~/x y.py, of USER (raised in paddle/__init__.py, line 1)"),
    ("ppdiffusers", "from huggingface_hub import cached_downlod",
     "ppdiffusers cannot be imported: ImportError: cannot import name 'cached_downlod' from 'huggingface_hub' "
     "(huggingface_hub/__init__.py) (raised in ppdiffusers/__init__.py, line 1)"),
])  # fmt: skip
def test_failed_import_is_explained(package, code, sentence, home):
    lines = report(home, exit_code=2, **{package: code.replace("/homes", str(home.parent))}).splitlines()
    assert sentence in lines
    assert lines[-1] == "the documentation (installation.md) says which versions work together"


def test_an_interrupted_import_is_no_fault(home):
    assert "cannot be imported" not in report(home, exit_code=130, paddle="raise KeyboardInterrupt")


def test_what_can_be_used_is_listed_with_what_a_missing_package_is_for(home):
    # As find_spec finds packages that are missing; the commands' are none that it needs.
    before = "import sys; sys.modules.update(openvino=None, tqdm=None, skimage=None)"
    text = " ".join(report(home, before, exit_code=2, psutil="raise ImportError").split())
    assert "not measured, as psutil cannot be imported" in text
    assert "openvino missing (for compile_cpu, --compile)" in text
    assert "tqdm missing (for the commands)" in text
    for name in ("xxhash", "psutil"):
        version = find_version(name)
        assert f"{name} {version}" in text if version else f"{name} missing (for " in text


def test_versions_that_do_not_fit_are_named(monkeypatch):
    installed = {"paddlenlp": "2.5.0", "paddlepaddle-gpu": "3.3.1.post126", "paddlepaddle": None, "numpy": None}
    real = environment.find_version
    monkeypatch.setattr(environment, "find_version", lambda name: installed.get(name, real(name)))
    problems = "\n".join(find_problems({}))
    assert "paddlenlp is 2.5.0, and ppdiffusers-tome needs paddlenlp" in problems
    assert "numpy is missing, and ppdiffusers-tome needs numpy" in problems
    assert "paddlepaddle" not in problems
    assert describe_environment()["installed"]["paddlepaddle-gpu"] == "3.3.1.post126"
    # What reads the bounds may be what is broken.
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert find_problems({}) == ["all that is needed is installed and can be imported"]
    assert "never tested with ppdiffusers 9.9" in find_problems({"ppdiffusers": {"version": "9.9"}})[0]


def test_report_needs_the_standard_library_alone():
    code = (
        "import sys; before = set(sys.modules); import ppdiffusers_tome.tools.doctor.environment; "
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    assert run_python("-c", code, check=True).stdout.strip() == "{'ppdiffusers_tome'}"
