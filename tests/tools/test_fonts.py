"""Texts of any script on sheets and plots: drawn with a font that has them, or left out and told of; never boxes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTCollection, TTFont
from PIL import Image, ImageFont

from ppdiffusers_tome.tools.figures import fonts
from ppdiffusers_tome.tools.figures.fonts import drawable
from ppdiffusers_tome.tools.figures.plots import draw_plot
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet

CAT = "一只猫"


def font_with(path: Path, letters: str) -> Path:
    """A font in which every letter is a square."""
    names = {ord(letter): f"uni{ord(letter):04X}" for letter in letters}
    builder = FontBuilder(1024, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap(names)
    pen = TTGlyphPen(None)
    for place, corner in enumerate([(0, 0), (0, 800), (900, 800), (900, 0)]):
        (pen.lineTo if place else pen.moveTo)(corner)
    pen.closePath()
    square = pen.glyph()
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), **dict.fromkeys(names.values(), square)})
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", *names.values()], (1024, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-124)
    builder.setupNameTable({"familyName": path.stem, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(str(path))
    return path


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files of the system's fonts: those that a test puts there."""
    files: list[str] = []
    caches = (fonts._best, fonts._files, fonts._warn_of, fonts.chinese_family)
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: files)
    yield files
    for cache in caches:
        cache.cache_clear()


def warnings_of(captured: pytest.CaptureFixture[str]) -> list[str]:
    return captured.readouterr().err.splitlines()


def test_plain_text_has_pillows_own_font(system, capsys):
    plain = "".join(filter(str.isprintable, map(chr, range(128)))) + "\u00b7"  # which sheets have between numbers
    text, font = drawable(plain, 14)
    assert text == plain
    assert font.getname() == ImageFont.load_default(size=14).getname()
    assert set(map(ord, plain)) <= fonts._in_default()
    assert warnings_of(capsys) == []


def test_a_font_that_has_all_is_found(system, tmp_path, capsys):
    system += [str(font_with(tmp_path / "A.ttf", "一a ")), str(font_with(tmp_path / "B.ttf", f"{CAT}a "))]
    text, font = drawable(f"{CAT} a", 14)
    assert (text, font.getname()[0]) == (f"{CAT} a", "B")
    assert warnings_of(capsys) == []


def test_of_several_the_preferred_one_is_taken(system, tmp_path):
    names = ("A.ttf", "NotoSansCJK-Bold.ttf", "NotoSansCJK-Regular.ttf")
    system += [str(font_with(tmp_path / name, CAT)) for name in names]
    assert drawable(CAT, 14)[1].getname()[0] == "NotoSansCJK-Regular"


def test_of_a_file_of_several_faces_that_of_mainland_china_is_taken(system, tmp_path):
    faces = TTCollection()
    faces.fonts = [TTFont(font_with(tmp_path / f"Many {where}.ttf", CAT)) for where in ("JP", "SC", "TC")]
    faces.save(tmp_path / "Many.ttc")
    system.append(str(tmp_path / "Many.ttc"))
    assert drawable(CAT, 14)[1].getname()[0] == "Many SC"


def test_what_no_font_has_is_left_out_and_told_of_once(system, capsys):
    assert drawable(f"{CAT} on a table, {CAT} {CAT}", 14)[0] == "... on a table, ..."
    drawable(f"{CAT} on a table, {CAT} {CAT}", 20)
    (line,) = warnings_of(capsys)
    assert line.startswith(f"warning: no font of this system has all characters of '{CAT} on a table, ")
    assert "install one that has, such as fonts-noto-cjk" in line


def test_a_font_that_has_most_is_better_than_none(system, tmp_path, capsys):
    system += ["/nowhere.ttf", str(tmp_path / "broken.ttf"), str(font_with(tmp_path / "A.ttf", f"{CAT}…"))]
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    assert drawable(f"{CAT}🙂", 14)[0] == f"{CAT}…"
    assert len(warnings_of(capsys)) == 1


def test_letters_of_europe_need_no_font_of_the_system(system, capsys):
    text = "Crème brûlée, Ähren, łódka, кошка, γάτα"
    drawn, font = drawable(text, 14)
    assert (drawn, font.getname()[0]) == (text, "DejaVu Sans")
    assert warnings_of(capsys) == []


def test_control_characters_are_no_text(system, capsys):
    assert drawable("a\x00b\u202ec\ud800", 14)[0] == "abc"
    assert warnings_of(capsys) == []


def test_prompts_on_a_sheet_are_drawn(system, tmp_path):
    system.append(str(font_with(tmp_path / "A.ttf", CAT)))
    cells = [Cell(Image.new("RGB", (256, 256), "white"))]
    sheets = [np.asarray(make_sheet(Label("x"), [Label("y")], [(text, cells)])) for text in ("", CAT)]
    dark = [(sheet < 100).all(axis=-1).sum() for sheet in sheets]
    # Three squares of about 12 by 11 pixels at a size of 14.
    assert dark[1] - dark[0] > 3 * 90


def test_a_plot_names_a_font_for_chinese_only_where_there_is_one(system, recwarn):
    draw_plot("plain", "", lambda figure: None, width=200, height=100)
    assert fonts.chinese_family() is None
    assert not recwarn.list
