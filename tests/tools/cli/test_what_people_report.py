"""What people report of programs like this one: control images that guide nothing, models that bring code, paths in
images, a process without a home or an output.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiny
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation.edges import EdgeSource, detect_edges
from tools.cli.conftest import PROMPT, SMALL

GENERATE = ["generate", *SMALL, "--prompt", PROMPT]


def edges_in(color: tuple[int, ...], ground: tuple[int, ...]) -> Image.Image:
    pixels = np.full((64, 64, len(ground)), ground, np.uint8)
    pixels[20:44, 20], pixels[20, 20:44] = color, color
    return Image.fromarray(pixels)


CONTROL_IMAGES = {
    "white": (edges_in((255, 255, 255), (0, 0, 0)), None),
    "transparent": (edges_in((255, 255, 255, 255), (0, 0, 0, 0)), None),
    "inverted": (edges_in((0, 0, 0), (255, 255, 255)), "does not show"),
    "black on nothing": (edges_in((0, 0, 0, 255), (0, 0, 0, 0)), "does not show"),
    "photo": (Image.fromarray(np.linspace(40, 200, 64 * 64 * 3).astype(np.uint8).reshape(64, 64, 3)), "does not show"),
}


@pytest.mark.parametrize("name", CONTROL_IMAGES)
def test_control_image_that_cannot_guide_is_named(name, tmp_path, recwarn):
    image, words = CONTROL_IMAGES[name]
    image.save(tmp_path / "edges.png")
    EdgeSource(tmp_path / "edges.png", "--control-image").load(64, 64)
    said = [str(each.message) for each in recwarn]
    assert [f"--control-image edges.png {words}" in each for each in said] == ([] if words is None else [True])


@pytest.mark.parametrize("command", ["compare", "generate --prompts"])
def test_photo_without_edges_is_named(command, tmp_path, capsys):
    Image.new("RGB", (96, 64), (60, 60, 60)).save(tmp_path / "dark.png")
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": PROMPT, "image": "dark.png"}))
    given = {
        "compare": ["compare", *SMALL, "--ratios", "0.5", "--prompt", PROMPT, "--image", str(tmp_path / "dark.png")],
        "generate --prompts": ["generate", *SMALL, "--prompts", str(tmp_path / "a.jsonl")],
    }[command]
    assert main([*given, "--output", str(tmp_path / "out")]) == 0
    assert "--image dark.png has no edges with the thresholds 100 and 200" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="the image has no edges"):  # and in Python
        detect_edges(Image.new("RGB", (64, 64)))


class Marks:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


def write_code(model: Path, mark: Path, kind: str) -> str:
    """Let a copy of the small model run code; return what must be named."""
    index = json.loads((model / "model_index.json").read_text())
    code = f"open({str(mark)!r}, 'w').close()\nfrom ppdiffusers import UNet2DConditionModel as Mine\n"
    if kind == "part":
        index["unet"], file = ["mine", "Mine"], "unet/mine.py"
    elif kind == "known name":
        index["unet"], file = ["ppdiffusers", "Mine"], "unet/ppdiffusers.py"
    elif kind == "pipeline":
        index["_class_name"], file = ["mine", "Mine"], "mine.py"
    elif kind == "None":
        file = "None.py"
    else:
        index["unet"], file = ["this", "Mine"], "the module this"
    if file.endswith(".py"):
        (model / file).write_text(code)
    (model / "model_index.json").write_text(json.dumps(index))
    return file


@pytest.mark.parametrize("kind", ["part", "known name", "pipeline", "None", "module"])
def test_code_of_a_model_runs_only_if_it_is_trusted(kind, tmp_path, capsys):
    model, mark = Path(shutil.copytree(tiny.PHOTOGRAPHS, tmp_path / "model")), tmp_path / "ran"
    named = write_code(model, mark, kind)
    for command in (GENERATE, ["compare", *SMALL], ["doctor"], ["export"]):
        output = [] if command == ["doctor"] else ["--output", str(tmp_path / "out")]
        assert main([*command, "--model", str(model), *output]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert named in line
        assert "--trust-model-code" in line
    assert not mark.exists()
    if kind == "part":
        assert main([*GENERATE, "--model", str(model), "--trust-model-code", "--output", str(tmp_path / "out")]) == 0
        assert mark.exists()


def test_pickled_weights_are_named_before_they_are_loaded(tmp_path, capsys):
    model, mark = Path(shutil.copytree(tiny.PHOTOGRAPHS, tmp_path / "model")), tmp_path / "ran"
    (model / "unet" / "diffusion_paddle_model.safetensors").unlink()
    (model / "unet" / "model_state.pdparams").write_bytes(pickle.dumps({"a": Marks(mark)}))
    assert main([*GENERATE, "--model", str(model), "--output", str(tmp_path / "out")]) == 2
    first, *_ = capsys.readouterr().err.splitlines()
    assert "weights are pickles, which can run any code" in first
    assert first.endswith(": unet/model_state.pdparams")
    assert mark.exists()


def test_images_hold_no_folder_of_the_user(tmp_path, photo):
    (tmp_path / "alice").mkdir()
    model, own = tmp_path / "alice" / "mine", tmp_path / "alice" / "photo.png"
    model.symlink_to(tiny.PHOTOGRAPHS)
    shutil.copy(photo, own)
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": PROMPT, "image": str(own)}))
    many = ["generate", *SMALL, "--prompts", str(tmp_path / "a.jsonl")]
    compared = ["compare", *SMALL, "--ratios", "0.5", "--prompt", PROMPT, "--image", str(own)]
    for given in (many, compared):
        assert main([*given, "--model", str(model), "--output", str(tmp_path / given[0])]) == 0
    images = [file for file in tmp_path.rglob("*.png") if file not in (own, photo)]
    assert len(images) >= 3
    for file in images:
        with Image.open(file) as image:
            assert "alice" not in str(image.info)
            assert str(tmp_path) not in str(image.info)


@pytest.mark.parametrize("text", ["一个女孩".encode("gbk"), b"\xff\xfe"])
@pytest.mark.parametrize("option", ["--prompt", "--negative-prompt"])
def test_prompt_of_other_bytes_is_refused(text, option, tmp_path, capsys):
    given = [option, os.fsdecode(text), *([] if option == "--prompt" else ["--prompt", PROMPT])]
    assert main(["generate", *SMALL, *given, "--output", str(tmp_path / "out")]) == 2
    assert f"{option} " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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
