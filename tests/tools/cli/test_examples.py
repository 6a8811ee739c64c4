"""The examples run as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launching import python_path
from tools.cli.conftest import pixels_of

ROOT = Path(__file__).parents[3]


def run_example(name: str, folder: Path, *arguments: str) -> tuple[Path, str]:
    """Run an example in a fresh process; returns its picture and what it printed."""
    output = folder / "picture.png"
    done = started(name, folder, "--offline", "--size", "64", "--steps", "2", "--output", str(output), *arguments)
    assert done.returncode == 0, done.stderr
    return output, done.stdout


def started(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An example in a fresh process."""
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
    )


@pytest.mark.parametrize("name", ["stable_diffusion", "controlnet_canny"])
def test_example_runs_offline(name, tmp_path):
    output, said = run_example(name, tmp_path)
    assert pixels_of(output).shape == (64, 64, 3)
    assert str(output) in said
    assert "merged" in said


def test_controlnet_example_takes_a_photo_as_people_see_it(tmp_path, photo):
    """The file of a camera that was turned gives what the upright picture gives."""
    tags = Image.Exif()
    tags[0x0112] = 6  # to be turned by a quarter to the right
    with Image.open(photo) as upright:
        upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=tags)
    pictures = []
    for name in (photo, tmp_path / "turned.png"):
        output, _ = run_example("controlnet_canny", tmp_path, "--image", str(name))
        pictures.append(pixels_of(output))
    assert pictures[0].shape == (64, 64, 3)
    np.testing.assert_array_equal(*pictures)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["flux", "wan_video"])
def test_an_example_says_what_it_needs(name, tmp_path):
    """Here there is neither a ppdiffusers with such models nor, where there is, a GPU."""
    done = started(name, tmp_path)
    assert done.returncode == 2
    assert "install it from PaddleMIX's source" in done.stderr or "run this on a GPU" in done.stderr
