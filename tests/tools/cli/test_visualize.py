"""``visualize``: its files, and that it shows the groups that merged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.figures.merging import draw_groups
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.images import read_settings
from ppdiffusers_tome.tools.recorder import record_merging
from tools.cli.conftest import PROMPT, SMALL, heard, pixels_of

SIZE = ["--height", "128", "--width", "128", "--steps", "2"]
FILES = ["visualize.json", "visualize.png"]
BLOCK = "down_blocks.0.attentions.0.transformer_blocks.0"
MARGIN, GAP = 28, 16  # of a sheet


def visualize(folder: Path, *arguments: str, size: list[str] = SIZE) -> dict:
    """Run the command and return the content of its JSON."""
    assert main(["visualize", *size, "--prompt", PROMPT, "--output", str(folder), *arguments]) == 0
    return json.loads((folder / "visualize.json").read_text())


def has_image(column: np.ndarray, image: np.ndarray) -> bool:
    height = len(image)
    return any(np.array_equal(column[top : top + height], image) for top in range(len(column) - height))


def test_a_sheet_and_numbers_are_written(tmp_path, capsys):
    content = visualize(tmp_path, "--ratio", "0.5")
    captured = capsys.readouterr()
    assert heard(captured.err) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    merging = "token merging: unet has ratio 0.5 in 3 blocks"
    assert captured.out.splitlines() == [merging, *(str(tmp_path / name) for name in reversed(FILES))]
    assert read_settings(tmp_path / "visualize.png") == content["run"]
    assert content["run"]["ratio"] == content["run"]["tome"]["ratio"] == 0.5
    first = content["merged"][0]
    assert {name: first[name] for name in ("denoiser", "block", "level", "grid", "call", "timestep", "tokens")} == {
        "denoiser": "unet", "block": BLOCK, "level": 1, "grid": [16, 16], "call": 1, "timestep": 999.0, "tokens": 256,
    }  # fmt: skip
    assert {row["merged_away"] for row in content["merged"]} == {128}
    assert {row["call"] for row in content["merged"]} == {1, 2}


def test_the_groups_are_those_that_merged(tmp_path):
    """The same image generated in Python, and its records."""
    from ppdiffusers import StableDiffusionPipeline

    from ppdiffusers_tome import apply_tome
    from ppdiffusers_tome.tools.generation.sampling import generate_image

    visualize(tmp_path, "--ratio", "0.5")
    pipe = apply_tome(StableDiffusionPipeline.from_pretrained(str(find_model("photographs").folder)), 0.5)
    pipe.set_progress_bar_config(disable=True)
    with record_merging(pipe) as records:
        image = generate_image(pipe, PROMPT, height=128, width=128, seed=0, steps=2, guidance_scale=1.5)
    column = pixels_of(tmp_path / "visualize.png")[:, MARGIN + 256 + GAP :][:, :256]
    for record in (record for record in records if record.block.path == BLOCK):
        assert has_image(column, np.asarray(draw_groups(image, record)).repeat(2, axis=0).repeat(2, axis=1))


def test_blocks_and_calls_are_selected(tmp_path):
    oblong = ["--height", "64", "--width", "128", "--steps", "3"]
    visualize(tmp_path / "a", "--max-downsample", "4", "--at", "3", size=oblong)
    content = visualize(tmp_path / "b", "--blocks", "all", "--at", "1", "3", size=oblong)
    visualize(tmp_path / "c", "--blocks", "up_blocks", size=oblong)
    blocks = list(dict.fromkeys(row["block"] for row in content["merged"]))
    ups = [block for block in blocks if "up_blocks" in block]
    assert 1 < len(ups) < len(blocks)
    shapes = [pixels_of(tmp_path / name / "visualize.png").shape for name in "abc"]
    columns = [1 + 3, 1 + len(blocks), 1 + len(ups)]  # the image, and the blocks
    assert [shape[1] for shape in shapes] == [2 * MARGIN + count * (256 + GAP) - GAP for count in columns]
    assert shapes[0][0] < shapes[1][0] < shapes[2][0]  # rows of one call, two, three


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--at", "5", "1"], "--at 5 must be from 1 to 1"),
        (["--blocks", "all", "nowhere"], f"these merge: unet.{BLOCK}"),
        (["--height", "8", "--width", "8"], "none of the blocks merged tokens into groups"),
    ],
)
def test_bad_input_is_refused(arguments, words, tmp_path, capsys):
    assert main(["visualize", *SMALL, "--prompt", PROMPT, "--output", str(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
