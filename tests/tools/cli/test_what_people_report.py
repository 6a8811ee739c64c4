"""What people report of programs like this one: models that bring code, a process without a home or an output."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from environment import python_path
from ppdiffusers_tome.tools.cli.program import main
from tools.cli.conftest import PROMPT, SMALL

GENERATE = ["generate", *SMALL, "--prompt", PROMPT]


class Marks:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.mark.parametrize(
    ("named", "index"),
    [
        ("unet/mine.py", {"unet": ["mine", "Mine"]}), ("unet/ppdiffusers.py", {"unet": ["ppdiffusers", "Mine"]}),
        ("mine.py", {"_class_name": ["mine", "Mine"]}), ("the module this", {"unet": ["this", "Mine"]}),
        ("None.py", {}),
    ],
)  # fmt: skip
def test_a_model_with_code_of_its_own_is_refused(named, index, tmp_path, capsys):
    model, mark = Path(shutil.copytree(tiny.PHOTOGRAPHS, tmp_path / "model")), tmp_path / "ran"
    if named.endswith(".py"):
        code = f"open({str(mark)!r}, 'w').close()\nfrom ppdiffusers import UNet2DConditionModel as Mine\n"
        (model / named).write_text(code)
    known = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps(known | index))
    for command in (GENERATE, ["compare", *SMALL]):
        assert main([*command, "--model", str(model), "--output", str(tmp_path / "out")]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert named in line
        assert "load the model in Python" in line
    assert not mark.exists()


def test_pickled_weights_are_named_before_they_are_loaded(tmp_path, capsys):
    model, mark = Path(shutil.copytree(tiny.PHOTOGRAPHS, tmp_path / "model")), tmp_path / "ran"
    safe = model / "unet" / "diffusion_paddle_model.safetensors"
    safe.rename(safe.with_suffix(".fp16.safetensors"))  # which ppdiffusers reads where there is nothing else
    (model / "unet" / "model_state.pdparams").write_bytes(pickle.dumps({"a": Marks(mark)}))
    assert main([*GENERATE, "--model", str(model), "--output", str(tmp_path / "out")]) == 2
    _, first, *_ = capsys.readouterr().err.splitlines()  # after loading
    assert "weights are pickles, which can run any code" in first
    assert first.endswith(": unet/model_state.pdparams")
    assert mark.exists()


@pytest.mark.once
def test_ppdiffusers_that_cannot_be_imported_is_one_line_that_names_the_doctor(tmp_path):
    (tmp_path / "ppdiffusers").mkdir()
    (tmp_path / "ppdiffusers" / "__init__.py").write_text("from huggingface_hub import cached_downlod")
    done = subprocess.run(
        [sys.executable, "-m", "ppdiffusers_tome", *GENERATE, "--output", str(tmp_path)], capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": python_path(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "'cached_downlod' from 'huggingface_hub'" in done.stderr
    assert done.stderr.endswith("; ppdiffusers-tome doctor says what to install\n")


@pytest.mark.once
@pytest.mark.parametrize(
    ("redirected", "environment", "code", "words"),
    [
        (">/dev/full", {}, 2, "standard output cannot be used (No space left on device)"),
        ("", {"HOME": "/proc/nowhere"}, 2, "set HOME to a folder that you may write to"),
    ],
)
def test_process_without_a_home_or_an_output(redirected, environment, code, words, tmp_path):
    command = f"{sys.executable} -m ppdiffusers_tome generate {' '.join(SMALL)} --prompt cat --output {tmp_path}"
    done = subprocess.run(
        f"{command} {redirected}", shell=True, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert words in done.stderr.splitlines()[-1]
