"""Sheets, and images of merged tokens."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.tools.figures.merging import draw_groups
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.recorder import MergeRecord, MergingBlock


def test_characters_that_no_font_has_are_one_warning(capsys, monkeypatch):
    monkeypatch.setattr("ppdiffusers_tome.tools.figures.sheet._FONTS", ("DejaVu Sans",))
    before = dict(matplotlib.rcParams)
    make_sheet(Label("一只猫"), [Label("Crème brûlée, кошка")], [("", [Cell(Image.new("RGB", (64, 64)))])])
    assert dict(matplotlib.rcParams) == before
    line = capsys.readouterr().err.splitlines()[-1]
    assert "no font of this system" in line
    assert "fonts-noto-cjk" in line


@pytest.mark.parametrize("size", [(64, 64), (1024, 512)])
def test_a_sheet_holds_every_image_with_its_labels(size):
    colors = [(10 * row, 60 * column, 99) for row in range(2) for column in range(3)]
    cells = [Cell(Image.new("RGB", size, color), "1.00 s") for color in colors]
    rows = [("a prompt that is long " * 20, cells[:3]), ("$two$\n猫\x00", cells[3:])]
    path = "down_blocks.0.attentions.0.transformer_blocks.0" * 2
    labels = [Label(f"ratio {column}", (path, "a line " * 20)) for column in range(3)]
    sheet = np.asarray(make_sheet(Label("Title", ("a note " * 40,)), labels, rows))
    areas = [(sheet == color).all(-1).sum() for color in colors]
    assert len(set(areas)) == 1
    assert areas[0] >= 256 * 256
    assert (sheet[:, -20:] == 255).all()  # nothing is wider than its column


def make_record(height: int, width: int, groups: list[int]) -> MergeRecord:
    return MergeRecord(MergingBlock("unet", "block", 1), Grid(height, width), 0, None, np.array(groups, np.int32))


def test_a_group_has_its_mean_color_and_one_outline():
    pixels = np.zeros((8, 32, 3), np.uint8)
    pixels[:, :8], pixels[:, 16:24], pixels[:, 24:] = 200, 100, 50
    drawn = np.asarray(draw_groups(Image.fromarray(pixels), make_record(1, 4, [0, 1, 0, 2])))
    assert (drawn[:, :7] == 150).all()
    assert (drawn[:, 17:23] == 150).all()
    assert (drawn[:, 8:16] == 0).all()
    assert (drawn[:, 24:] == 50).all()
    outline = drawn[0, 7]
    assert np.ptp(outline) > 100
    assert (drawn[:, [7, 16, 23]] == outline).all()


@pytest.mark.parametrize(("pixels", "tokens", "covered"), [(264, 17, 16), (40, 3, 16), (64, 8, 8), (60, 7, None)])
def test_tokens_cover_the_pixels_of_their_level(pixels, tokens, covered):
    gray = np.linspace(0, 255, pixels).astype(np.uint8)[:, None].repeat(8, axis=1)
    drawn = np.asarray(draw_groups(Image.fromarray(gray), make_record(tokens, 1, [*range(tokens)])))[:, 0]
    borders = np.flatnonzero((drawn[1:] != drawn[:-1]).any(axis=-1)) + 1
    assert len(borders) == tokens - 1
    if covered is not None:
        assert (borders == covered * np.arange(1, tokens)).all()
