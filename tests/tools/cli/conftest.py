"""Fixtures of the commands, which run the small model at a small size."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import ppdiffusers
import pytest
from PIL import Image

import tiny
from ppdiffusers_tome.tools.cli.program import main

PROMPT, ROCKET = "a photo of a cat", "a photo of a rocket"
SMALL = ["--height", "64", "--width", "64", "--steps", "1"]


def heard(errors: str) -> list[str]:
    """Return the lines of standard error but the warning about small images, and progress."""
    progress = r"images may be smears|^\w+: \d+ of \d+, |^loading .* \.\.\.$"
    return [line for line in errors.splitlines() if not re.search(progress, line)]


@pytest.fixture
def generate(tmp_path):
    """Run ``generate`` on small images; returns the files, in order."""

    def run(*arguments: str, folder: str = "outputs", prompts: tuple[str, ...] = (PROMPT,)) -> list[Path]:
        output = tmp_path / folder
        asked = [part for prompt in prompts for part in ("--prompt", prompt)]
        assert main(["generate", *SMALL, *asked, "--output", str(output), *arguments]) == 0
        return sorted(output.iterdir())

    return run


def draw_square() -> Image.Image:
    """A photo with edges: a bright square on a dark ground."""
    pixels = np.zeros((90, 120, 3), np.uint8)
    pixels[30:60, 40:80] = 220
    return Image.fromarray(pixels)


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    draw_square().save(path)
    return path


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def write_dit(folder: Path, names: dict[str, str]) -> None:
    """Write a small DiTPipeline with labels, as ppdiffusers saves it."""
    pipe = ppdiffusers.DiTPipeline(
        transformer=tiny.dit(num_embeds_ada_norm=1000, out_channels=8), vae=tiny.vae(), scheduler=tiny.scheduler()
    )
    pipe.save_pretrained(str(folder))
    index = folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"id2label": names}))
