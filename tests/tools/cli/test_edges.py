"""The edges that guide a ControlNet: of pictures of any kind and shape, as people see them."""

from __future__ import annotations

import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS
from ppdiffusers_tome.tools.generation.edges import (
    FIT_MODES,
    EdgeSource,
    compute_photograph_edges,
)


def test_edges_of_a_photo_have_the_pictures_size(photo):
    edges = np.asarray(EdgeSource(photo).load(64, 128))
    assert edges.shape == (64, 128, 3)
    assert set(np.unique(edges)) == {0, 255}


def test_thresholds_decide_what_an_edge_is(tmp_path):
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[16:48, 16:48] = 20
    Image.fromarray(pixels).save(tmp_path / "faint.png")
    assert not np.asarray(EdgeSource(tmp_path / "faint.png").load(64, 64)).any()
    assert np.asarray(EdgeSource(tmp_path / "faint.png", low=20, high=40).load(64, 64)).any()


def test_given_edges_are_left_as_they_are(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "edges.png")
    np.testing.assert_array_equal(EdgeSource(tmp_path / "edges.png", "--control-image").load(16, 16), pixels)


def saved(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    picture = Image.fromarray(pixels)
    (picture if mode is None else picture.convert(mode)).save(path)
    return path


SQUARE = np.zeros((64, 64), bool)
SQUARE[16:48, 16:48] = True
# A square that people see, in files that Pillow takes for another thing when it is asked for RGB alone.
SEEN = {
    "16 bits, grey": np.where(SQUARE, 40_000, 3_000).astype(np.uint16),
    "16 bits, dark": np.where(SQUARE, 40_000, 300).astype(np.uint16),
    "black on nothing": np.dstack([np.zeros((64, 64, 3), np.uint8), SQUARE.astype(np.uint8) * 255]),
    "white on nothing": np.dstack([np.full((64, 64, 3), 255, np.uint8), SQUARE.astype(np.uint8) * 255]),
    "grey and nothing": np.dstack([np.full((64, 64), 30, np.uint8), SQUARE.astype(np.uint8) * 255]),
}


@pytest.mark.parametrize("kind", SEEN)
def test_edges_are_those_that_people_see(kind, tmp_path):
    plain = EdgeSource(saved(tmp_path / "plain.png", np.where(SQUARE, 250, 0).astype(np.uint8), "RGB")).load(64, 64)
    source = EdgeSource(saved(tmp_path / "kind.png", SEEN[kind]))
    np.testing.assert_array_equal(source.load(64, 64), plain)


@pytest.mark.parametrize("kind", ["png", "tiff"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("white", [1, 255, 1023, 4095, 16_383, 65_535])
def test_of_16_bits_those_in_use_count(white: int, channels: int, kind: str, tmp_path: Path) -> None:
    """Cameras and scanners of 10, 12 and 14 bits write so; the fourth channel says that nothing is transparent."""
    pixels = np.where(SQUARE, white, 0).astype(np.uint16)[..., None].repeat(channels, axis=2)
    pixels[..., 3:] = 65_535
    path = tmp_path / f"edges.{kind}"
    assert cv2.imwrite(str(path), pixels)
    EdgeSource(path).check()
    edges = np.asarray(EdgeSource(path, "--control-image").load(64, 64))
    np.testing.assert_array_equal(edges, np.where(SQUARE, 255, 0)[..., None].repeat(3, axis=2))
    assert np.asarray(EdgeSource(path).load(64, 64)).any()


def test_colours_of_16_bits_keep_their_order_and_the_camera_that_was_turned(tmp_path: Path) -> None:
    red = np.zeros((32, 64, 3), np.uint16)
    red[:, :32, 2] = 4095  # OpenCV's colours are blue, green, red
    assert cv2.imwrite(str(tmp_path / "red.png"), red)
    tags = Image.Exif()
    tags[0x0112] = 6
    chunk = b"eXIf" + tags.tobytes()[6:]
    content = (tmp_path / "red.png").read_bytes()
    chunk = (len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    (tmp_path / "turned.png").write_bytes(content[:33] + chunk + content[33:])  # behind the header
    plain = np.asarray(EdgeSource(tmp_path / "red.png", "--control-image").load(32, 64))
    assert (plain[:, :32] == [255, 0, 0]).all()
    turned = np.asarray(EdgeSource(tmp_path / "turned.png", "--control-image").load(64, 32))
    np.testing.assert_array_equal(turned, np.rot90(plain, -1))


def test_a_file_of_16_bits_that_was_cut_off_is_told_of(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 4095, (64, 64, 3)).astype(np.uint16)
    assert cv2.imwrite(str(tmp_path / "cut.png"), pixels)
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:9000])
    for use in (EdgeSource.check_file, lambda source: source.load(64, 64)):
        with pytest.raises(UserError, match=r"cut\.png cannot be read as a picture"):
            use(EdgeSource(tmp_path / "cut.png"))


@pytest.mark.parametrize(("kind", "white"), [(np.int32, 65_535), (np.float32, 1.0), (np.float32, 255.0)])
def test_edges_of_other_numbers(kind, white, tmp_path):
    source = EdgeSource(saved(tmp_path / "kind.tiff", np.where(SQUARE, 0.8 * white, 0.1 * white).astype(kind)))
    assert np.asarray(source.load(64, 64)).any()


def test_a_palette_with_a_transparent_colour(tmp_path):
    picture = Image.fromarray(SQUARE.astype(np.uint8) * 255).convert("P")
    picture.save(tmp_path / "kind.png", transparency=0)
    assert np.asarray(EdgeSource(tmp_path / "kind.png").load(64, 64)).any()


def test_white_edges_on_nothing_are_white_on_black(tmp_path):
    source = EdgeSource(saved(tmp_path / "edges.png", SEEN["white on nothing"]), "--control-image")
    np.testing.assert_array_equal(np.asarray(source.load(64, 64))[..., 0], SQUARE * 255)


def test_behind_edges_on_nothing_it_is_black(tmp_path: Path) -> None:
    """Behind a photo it is white or black, whichever shows what was drawn; edges are white on black, or nothing."""
    path = saved(tmp_path / "edges.png", SEEN["black on nothing"])
    edges = EdgeSource(path, "--control-image")
    assert not np.asarray(edges.load(64, 64)).any()
    assert "is black all over, which guides nothing" in edges.describe_missing_edges(64, 64)
    assert np.asarray(EdgeSource(path).load(64, 64)).any()


class TestAnotherShape:
    """A photo twice as wide as high, with a square in its middle third, for a square picture."""

    @pytest.fixture
    def wide(self, tmp_path: Path) -> Path:
        pixels = np.pad(np.where(SQUARE, 250, 0), ((0, 0), (32, 32))).astype(np.uint8)
        return saved(tmp_path / "wide.png", pixels, "RGB")

    def bounds(self, source: EdgeSource) -> tuple[int, int, int, int]:
        edges = np.asarray(source.load(64, 64))
        assert edges.shape == (64, 64, 3)
        rows, columns = np.nonzero(edges[..., 0])
        return rows.min(), rows.max(), columns.min(), columns.max()

    def test_its_middle_is_used_and_nothing_is_squashed(self, wide: Path) -> None:
        middle = saved(wide.with_name("middle.png"), np.where(SQUARE, 250, 0).astype(np.uint8), "RGB")
        np.testing.assert_array_equal(EdgeSource(wide).load(64, 64), EdgeSource(middle).load(64, 64))

    @pytest.mark.parametrize(("fit", "height", "width"), [("crop", 32, 32), ("pad", 16, 16), ("stretch", 32, 16)])
    def test_three_ways(self, wide: Path, fit: str, height: int, width: int) -> None:
        top, bottom, left, right = self.bounds(EdgeSource(wide, fit=fit))
        assert bottom - top == pytest.approx(height, abs=3)
        assert right - left == pytest.approx(width, abs=3)
        assert (top + bottom, left + right) == pytest.approx((63, 63), abs=3)

    def test_edges_that_are_given_are_padded_with_black(self, tmp_path: Path) -> None:
        source = EdgeSource(saved(tmp_path / "a.png", np.full((8, 32, 3), 9, np.uint8)), "--control-image", fit="pad")
        edges = np.asarray(source.load(64, 64))
        assert (edges[24:40] == 9).all()
        assert not edges[:24].any()
        assert not edges[40:].any()

    @pytest.mark.parametrize("fit", FIT_MODES)
    def test_the_thinnest(self, fit: str, tmp_path: Path) -> None:
        source = EdgeSource(saved(tmp_path / "a.png", np.full((600, 1), 9, np.uint8)), fit=fit)
        assert source.load(64, 32).size == (32, 64)

    def test_what_was_done_is_said(self, wide: Path) -> None:
        assert EdgeSource(wide).describe_fit(64, 128) is None
        assert EdgeSource(wide).describe_fit(33, 66) is None
        said = EdgeSource(wide).describe_fit(64, 64)
        assert said is not None
        assert "wide.png is 128x64 and the picture 64x64: its middle is used; --fit pad and --fit stretch" in said
        assert "it is stretched; --fit crop and --fit pad" in str(EdgeSource(wide, fit="stretch").describe_fit(64, 64))

    def test_a_camera_that_was_turned(self, wide: Path) -> None:
        """EXIF says that the picture stands, so its own height and width change places."""
        tags = Image.Exif()
        tags[0x0112] = 6
        with Image.open(wide) as picture:
            picture.save(wide.with_name("turned.jpg"), exif=tags, quality=95)
        turned = EdgeSource(wide.with_name("turned.jpg"))
        assert turned.describe_fit(128, 64) is None
        assert "is 64x128 and" in str(turned.describe_fit(64, 64))
        assert turned.load(128, 64).size == (64, 128)


@pytest.mark.parametrize(
    ("pixels", "option", "sentence"),
    [
        (np.full((64, 64, 3), 7, np.uint8), "--image", "is of one colour where it is used, so it has no edges; give"),
        (np.where(SQUARE, 20, 0).astype(np.uint8), "--image", "gives no edges; lower --canny-low and --canny-high"),
        (np.zeros((64, 64, 3), np.uint8), "--control-image", "is black all over, which guides nothing; give edges in"),
    ],
)
def test_why_there_are_no_edges(pixels, option, sentence, tmp_path):
    source = EdgeSource(saved(tmp_path / "a.png", pixels), option)
    assert not np.asarray(source.load(64, 64)).any()
    assert sentence in source.describe_missing_edges(64, 64)


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "bmp", "webp"])
def test_a_file_that_was_cut_off_is_found_by_the_quick_checks(kind, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    whole = saved(tmp_path / f"whole.{kind}", pixels)
    EdgeSource(whole).check_file()
    EdgeSource(whole).check_end()
    cut = tmp_path / f"cut.{kind}"
    for share in (0.3, 0.9):
        cut.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])
        for check in (EdgeSource.check_file, EdgeSource.check_end):
            with pytest.raises(UserError, match=f"cut.{kind} cannot be read as a picture"):
                check(EdgeSource(cut))


@pytest.mark.parametrize(("kind", "zeros"), [("jpg", 0), ("jpg", 512), ("png", 0)])
def test_that_a_picture_is_whole_is_seen_without_computing_it(kind, zeros, tmp_path, monkeypatch):
    """A file of prompts may name millions, and one rank looks at all."""
    whole = saved(tmp_path / f"whole.{kind}", np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8))
    with whole.open("ab") as file:
        file.write(bytes(zeros))
    for cls in (JpegImageFile, PngImageFile):
        monkeypatch.setattr(cls, "load", lambda *_: pytest.fail("it was computed"))
    EdgeSource(whole).check_end()


def test_what_stands_behind_a_jpeg_does_not_make_it_cut_off(tmp_path):
    """As the film that some telephones put there."""
    path = saved(tmp_path / "a.jpg", np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8))
    with path.open("ab") as file:
        file.write(b"a film" * 1000)
    EdgeSource(path).check_end()


@pytest.mark.parametrize("size", [(512, 512), (256, 384)])
def test_edges_of_the_photograph_that_a_prompt_names(size):
    edges = [np.asarray(compute_photograph_edges(subject, *size)) for subject in SUBJECTS]
    assert {each.shape for each in edges} == {(*size, 3)}
    assert len({each.tobytes() for each in edges}) == len(SUBJECTS)
    assert 0.01 < np.mean(edges[1] > 0) < 0.5
