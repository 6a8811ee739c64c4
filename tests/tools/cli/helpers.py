"""Run commands in this process, and read what they wrote."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import ppdiffusers
from PIL import Image

import tiny
from ppdiffusers_tome.tools.cli.commands import import_commands
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.console.parsing import Parser

PROMPT, ROCKET = "a photo of a cat", "a photo of a rocket"
SMALL = ["--height", "64", "--width", "64", "--steps", "1"]


def heard(errors: str) -> list[str]:
    """Return the lines of standard error but the warning about small images, and progress."""
    progress = r"images may be smears|^\w+: \d+ of \d+, |^loading .* \.\.\.$"
    return [line for line in errors.splitlines() if not re.search(progress, line)]


def make_parser(command: str) -> Parser:
    parser = Parser(prog="x")
    import_commands()[command].add_arguments(parser)
    return parser


def compare(folder: Path, *arguments: str) -> int:
    return main(["compare", *SMALL, "--output", str(folder), *arguments])


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of ``compare`` by the name of the configuration."""
    content = json.loads((folder / "compare.json").read_text())
    return {row["configuration"]["name"]: row for row in content["configurations"]}


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def draw_square() -> Image.Image:
    """A photo with edges: a bright square on a dark ground."""
    pixels = np.zeros((90, 120, 3), np.uint8)
    pixels[30:60, 40:80] = 220
    return Image.fromarray(pixels)


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def write_dit(folder: Path, names: dict[str, str]) -> None:
    """Write a small DiTPipeline with labels, as ppdiffusers saves it."""
    pipe = ppdiffusers.DiTPipeline(
        transformer=tiny.dit(num_embeds_ada_norm=1000, out_channels=8), vae=tiny.vae(), scheduler=tiny.scheduler()
    )
    pipe.save_pretrained(str(folder))
    change_json(folder / "model_index.json", id2label=names)
