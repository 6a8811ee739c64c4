"""Images: files read as people see them and written whole, edges for a ControlNet, sheets, and merged tokens."""

import matplotlib
import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError, UserError
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.tools.edges import detect_edges, fit_image, load_edges, read_photo_file
from ppdiffusers_tome.tools.figures.groups import draw_groups
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.images import read_image, read_settings, slugify, write_image
from ppdiffusers_tome.tools.recorder import MergeRecord, RecordedBlock

SQUARE = np.zeros((64, 64), bool)
SQUARE[16:48, 16:48] = True
GRAY = np.where(SQUARE, 250, 0).astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
ALPHA = SQUARE.astype(np.uint8) * 255


def save(path, pixels, mode=None, **arguments):
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path, **arguments)
    return path


def test_files_of_all_kinds_become_rgb_as_people_see_them(tmp_path):
    gray, white = np.where(SQUARE, 255, 0)[..., None].repeat(3, 2), np.full((64, 64, 3), 255, np.uint8)
    for pixels in (SQUARE.astype(np.uint16) * 4095, SQUARE.astype(np.float32)):
        np.testing.assert_array_equal(read_image(save(tmp_path / "a.tiff", pixels)), gray)
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.png", np.dstack([0 * white, 255 - ALPHA]))), gray)
    assert read_image(save(tmp_path / "a.jpg", GRAY, "CMYK")).mode == "RGB"
    palette = read_image(save(tmp_path / "p.png", GRAY, "P", transparency=0))
    assert palette.getextrema() == ((250, 255),) * 3
    tags = Image.Exif()
    tags[0x0112] = 6  # turned by the camera
    turned = read_image(save(tmp_path / "a.png", NOISE, exif=tags))
    np.testing.assert_array_equal(turned, np.rot90(NOISE, -1))


def test_edges_are_of_the_middle_and_a_photo_without_any_is_named(tmp_path, recwarn):
    wide = load_edges(save(tmp_path / "wide.png", np.pad(GRAY, ((0, 0), (32, 32))), "RGB"), 64, 64)
    np.testing.assert_array_equal(wide, load_edges(save(tmp_path / "square.png", GRAY, "RGB"), 64, 64))
    assert not recwarn.list
    load_edges(save(tmp_path / "a.png", NOISE // 255), 64, 64)
    (warning,) = recwarn
    assert "--image a.png has no edges with the thresholds 100 and 200" in str(warning.message)


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "webp"])
def test_files_that_were_cut_off_are_detected(kind, tmp_path):
    path = save(tmp_path / f"a.{kind}", NOISE)
    read_photo_file(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])
    with pytest.raises(UserError, match=rf"--image .*a\.{kind} cannot be read as an image"):
        read_photo_file(path)


def test_what_is_no_image_is_named(tmp_path):
    """In Python, as README's ControlNet reads its photo."""
    (tmp_path / "README.md").write_text("# no image")
    for path, words in (("README.md", "README.md cannot be read as an image; give a PNG"),
                        ("x.png", r"x.png cannot be read as an image \(No such file")):  # fmt: skip
        with pytest.raises(ToMeValueError, match=words):
            read_image(tmp_path / path)
    for use in (lambda image: fit_image(image, 8, 8), detect_edges):
        with pytest.raises(ToMeTypeError, match=r"image='x.png' must be an image; read_image\(path\) reads a file"):
            use("x.png")
    with pytest.raises(ToMeValueError, match="low=300 and high=100 must be 0 or more, low not above high"):
        detect_edges(Image.fromarray(NOISE), low=300, high=100)
    with pytest.raises(ToMeTypeError, match="uint8; got float64"):
        detect_edges(NOISE / 255)


def test_edges_of_a_palette_are_those_of_its_colours() -> None:
    image = Image.fromarray(NOISE).convert("RGB").quantize(8)
    assert np.array_equal(np.asarray(detect_edges(image)), np.asarray(detect_edges(image.convert("RGB"))))


@pytest.mark.parametrize(("prompt", "expected"), [
    ("A red circle!", "a-red-circle"), ("../../etc/passwd", "etc-passwd"), ("cre\u0300me", "crème"),
    ("Ёлка й ガ 고양이", "ёлка-й-ガ-고양이"), ("قطة/كلب\u202e", "قطة-كلب"), ("🙂 \ud800", "image"),
    ("猫" * 100, "猫" * 40), ("con\0trol\n\\", "con-trol"),
])  # fmt: skip
def test_slug_is_safe_in_any_file_system(prompt, expected):
    assert slugify(prompt) == expected


def test_settings_survive_the_file(tmp_path):
    settings = {"prompt": 'une étoile 一 \n"', "seed": 2**62, "tome": None, "nested": {"a": [1, 2]}}
    write_image(tmp_path / "a.png", Image.fromarray(GRAY), settings)
    assert read_settings(tmp_path / "a.png") == settings
    with pytest.raises(KeyError):
        read_settings(save(tmp_path / "b.png", GRAY))


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
    return MergeRecord(RecordedBlock("unet", "block", 1), Grid(height, width), 0, None, np.array(groups, np.int32))


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
