"""The examples run as a user would run them."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import ppdiffusers
import pytest

import tiny
from environment import python_path
from tools.cli.conftest import pixels_of

OFFLINE = ("stable_diffusion", "controlnet_canny")
ROOT = Path(__file__).parents[2]


def run_example(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example in a fresh process."""
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments], capture_output=True, text=True,
        cwd=folder, env={**os.environ, "PYTHONPATH": python_path(ROOT)},
    )  # fmt: skip


def test_examples_run_offline(tmp_path, photo):
    output = tmp_path / "image.png"
    for name, given in (("stable_diffusion", []), ("controlnet_canny", ["--image", str(photo)])):
        arguments = ["--offline", "--size", "64", "--steps", "2", "--output", str(output)]
        done = run_example(name, tmp_path, *arguments, *given)
        assert done.returncode == 0, done.stderr
        assert "unet" in done.stdout
        assert pixels_of(output).shape == (64, 64, 3)
        output.unlink()


def test_examples_refuse_what_they_cannot_use_in_a_sentence(tmp_path, photo, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "half.png").write_bytes(photo.read_bytes()[: photo.stat().st_size // 2])
    begin, data, end = photo.read_bytes().partition(b"IDAT")
    # A chunk that ends too early, for which Pillow raises a SyntaxError.
    (tmp_path / "chunk.png").write_bytes(begin[:-4] + (20).to_bytes(4, "big") + data + end)
    for name, arguments, words in (
        ("stable_diffusion", ["--size", "300"], "--size 300 must be a multiple of 8 above 0, such as 304"),
        ("controlnet_canny", ["--image", "nosuch.png"], "--image nosuch.png cannot be read as an image (No such file"),
        ("controlnet_canny", ["--image", "chunk.png"], "--image chunk.png cannot be read as an image (broken PNG file"),
        ("train_lora", ["--images", "photos"], "half.png cannot be read as an image ("),
        ("train_lora", ["--images", "nosuch"], "--images nosuch is no folder"),
        ("train_lora", ["--merged-part", "1.5"], "--merged-part 1.5 must be from 0 to 1"),
        ("train_lora", ["--evaluations", "0"], "--evaluations 0 must be 1 or more"),
        ("quality/score_images", [".", "--clip", "."], ". holds no results of compare ([Errno 2]"),
        ("wan_video", ["--frames", "-3"], "--frames one of 4 plus 1, such as 480, 832 and 81"),
        ("wan_video", ["--merge-frames", "0"], "--merge-frames 0 must be 1 or more"),
    ):
        monkeypatch.setattr(sys, "argv", [name, *(["--offline"] if name in OFFLINE else []), *arguments])
        with pytest.raises(SystemExit) as refused:
            runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        # What argparse refuses is printed already, and then its exit code is 2.
        assert words in (capsys.readouterr().err.splitlines()[-1] if refused.value.code == 2 else refused.value.code)


def test_a_lora_trains_with_merging_and_loads(tmp_path, photo):
    """Three trainings in turns that begin equal; the last step of the second one is whole."""
    arguments = ["--size", "64", "--steps", "2", "--merged-part", "0.5", "--crops", "1", "--evaluations", "2"]
    (tmp_path / "photos").mkdir()
    shutil.copy(photo, tmp_path / "photos")
    done = run_example("train_lora", tmp_path, *arguments, "--images", "photos", "--output", ".")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["step"]) == {"whole", "merged"}
    assert all(value > 0 for measures in results["step"].values() for value in measures.values())
    losses = {name: values if name == "before" else values["2"] for name, values in results["losses"].items()}
    assert len({tuple(values) for values in losses.values()}) == len(losses) == 4
    pipe = ppdiffusers.StableDiffusionPipeline.from_pretrained(str(tiny.PHOTOGRAPHS))
    pipe.load_lora_weights(str(tmp_path / "merged-then-whole"), from_diffusers=False)
    trained = [layer.lora_layer.up.weight for layer in pipe.unet.sublayers() if getattr(layer, "lora_layer", None)]
    assert len(trained) == 80  # 10 blocks, two attentions of four layers
    assert sum(float(weight.abs().max()) > 0 for weight in trained) > 70  # no query matters where there is one token
