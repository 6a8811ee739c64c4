"""``visualize``: its files, and that it shows the groups that merged."""

from pathlib import Path

import numpy as np

import tiny
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.figures.groups import draw_groups
from ppdiffusers_tome.tools.generation.sampling import generate_image
from ppdiffusers_tome.tools.images import read_settings
from ppdiffusers_tome.tools.recorder import record_merging
from tools.cli.helpers import PROMPT, SMALL, heard, pixels_of

SIZE = ["--height", "128", "--width", "128", "--steps", "2"]
BLOCK = "down_blocks.0.attentions.0.transformer_blocks.0"
MARGIN, GAP = 28, 16  # of a sheet


def visualize(folder: Path, *arguments: str, size: list[str] = SIZE) -> Path:
    assert main(["visualize", *size, "--prompt", PROMPT, "--output", str(folder), *arguments]) == 0
    return folder / "visualize.png"


def has_image(column: np.ndarray, image: np.ndarray) -> bool:
    height = len(image)
    return any(np.array_equal(column[top : top + height], image) for top in range(len(column) - height))


def test_a_sheet_is_written(tmp_path, capsys):
    oblong = ["--height", "64", "--width", "128", "--steps", "4", "--ratio", "0.5", "--max-downsample", "4"]
    path = visualize(tmp_path, size=oblong)
    captured = capsys.readouterr()
    assert heard(captured.err) == []
    merging = "token merging: unet has ratio 0.5, max_downsample 4 in "
    assert captured.out.startswith(merging)
    assert captured.out.splitlines()[1:] == [str(path)] == [str(each) for each in tmp_path.iterdir()]
    assert read_settings(path)["tome"]["ratio"] == 0.5
    assert pixels_of(path).shape[1] == 2 * MARGIN + (1 + 3) * (256 + GAP) - GAP  # the image, and a block a level


def test_the_groups_are_those_that_merged(tmp_path):
    """The same image generated in Python, and its records."""
    path = visualize(tmp_path, "--ratio", "0.5")
    pipe = apply_tome(tiny.load_photographs(), 0.5)
    with record_merging(pipe) as records:
        image = generate_image(pipe, PROMPT, height=128, width=128, seed=0, steps=2, guidance_scale=1.5)
    column = pixels_of(path)[:, MARGIN + 256 + GAP :][:, :256]
    for record in (record for record in records if record.block.path == BLOCK):
        assert has_image(column, np.asarray(draw_groups(image, record)).repeat(2, axis=0).repeat(2, axis=1))


def test_an_image_without_groups_is_refused(tmp_path, get_error):
    error = get_error("visualize", *SMALL, "--height", "8", "--width", "8", "--prompt", PROMPT)
    assert "no block merged tokens into groups" in error
    assert list((tmp_path / "outputs").iterdir()) == []
