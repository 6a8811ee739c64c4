"""The examples run as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.commands.conftest import pixels_of

ROOT = Path(__file__).parents[3]


def run_example(name: str, folder: Path, *arguments: str) -> tuple[Path, str]:
    """Run an example in a fresh process; returns its picture and what it printed."""
    output = folder / "picture.png"
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--offline", "--size", "64", "--steps", "2"]
    done = subprocess.run(
        [*command, "--output", str(output), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return output, done.stdout


@pytest.mark.parametrize("name", ["stable_diffusion", "controlnet_canny"])
def test_example_runs_offline(name, tmp_path):
    output, said = run_example(name, tmp_path)
    assert pixels_of(output).shape == (64, 64, 3)
    assert str(output) in said
    assert "merged" in said


@pytest.mark.sweep  # both examples run in every commit
def test_controlnet_example_takes_a_photo(tmp_path, photo):
    output, _ = run_example("controlnet_canny", tmp_path, "--image", str(photo))
    assert pixels_of(output).shape == (64, 64, 3)
