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


def run_example(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example in a fresh process."""
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments], capture_output=True, text=True,
        cwd=folder, env={**os.environ, "PYTHONPATH": python_path(ROOT)},
    )  # fmt: skip


def test_examples_run_offline_and_read_photos_as_people_see_them(tmp_path, photo):
    """A photo from a camera that was rotated gives the image of the upright photo."""
    tags = Image.Exif()
    tags[0x0112] = 6
    with Image.open(photo) as upright:
        upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "rotated.png", exif=tags)
    images = []
    small, rotated = ["--image", str(photo)], ["--image", str(tmp_path / "rotated.png")]
    for name, given in (("stable_diffusion", []), ("controlnet_canny", small), ("controlnet_canny", rotated)):
        output = tmp_path / "image.png"
        arguments = ["--offline", "--size", "64", "--steps", "2", "--output", str(output)]
        done = run_example(name, tmp_path, *arguments, *given)
        assert done.returncode == 0, done.stderr
        assert "merged" in done.stdout
        images.append(pixels_of(output))
    assert images[0].shape == (64, 64, 3)
    np.testing.assert_array_equal(*images[1:])


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["flux", "wan_video"])
def test_an_example_says_what_it_needs(name, tmp_path):
    done = run_example(name, tmp_path)
    assert done.returncode == 2
    assert "install it from PaddleMIX's source" in done.stderr or "run this on a GPU" in done.stderr
