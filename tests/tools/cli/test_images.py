"""Image files: read as people see them, as edges for a ControlNet; written whole, with their settings inside."""

from __future__ import annotations

import os

import cv2
import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.files import prepare_folder, write_atomically, write_json
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.images import read_image, read_settings, slugify, write_image

SQUARE = np.zeros((64, 64), bool)
SQUARE[16:48, 16:48] = True
GRAY = np.where(SQUARE, 250, 0).astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
ALPHA = SQUARE.astype(np.uint8) * 255


def save(path, pixels, mode=None, **arguments):
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path, **arguments)
    return path


@pytest.mark.parametrize(
    "pixels",
    [
        np.where(SQUARE, 40_000, 300).astype(np.uint16),
        np.dstack([np.zeros((64, 64, 3), np.uint8), ALPHA]),  # black on nothing
        np.dstack([np.full((64, 64, 3), 255, np.uint8), ALPHA]),  # white on nothing
        np.dstack([np.full((64, 64), 30, np.uint8), ALPHA]),
    ],
)
def test_edges_are_those_that_people_see(pixels, tmp_path):
    plain = EdgeSource(save(tmp_path / "plain.png", GRAY, "RGB")).load(64, 64)
    np.testing.assert_array_equal(EdgeSource(save(tmp_path / "kind.png", pixels)).load(64, 64), plain)


@pytest.mark.parametrize("kind", ["png", "tiff"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bits_are_scaled_by_the_range_in_use(channels, kind, tmp_path):
    for white in (255, 4095, 65_535):
        pixels = np.where(SQUARE, white, 0).astype(np.uint16)[..., None].repeat(channels, axis=2)
        pixels[..., 3:] = 65_535
        assert cv2.imwrite(str(tmp_path / f"a.{kind}"), pixels)
        expected = np.where(SQUARE, 255, 0)[..., None].repeat(3, 2)
        np.testing.assert_array_equal(read_image(tmp_path / f"a.{kind}"), expected)


def test_colors_palettes_and_print_colors_become_rgb(tmp_path):
    red = np.zeros((8, 8, 3), np.uint16)
    red[..., 2] = 4095  # OpenCV's order is blue, green, red
    assert cv2.imwrite(str(tmp_path / "red.png"), red)
    assert read_image(tmp_path / "red.png").getpixel((0, 0)) == (255, 0, 0)
    assert read_image(save(tmp_path / "a.tiff", GRAY.astype(np.float32) / 250)).getextrema() == ((0, 255),) * 3
    assert read_image(save(tmp_path / "a.jpg", GRAY, "CMYK")).mode == "RGB"
    palette = read_image(save(tmp_path / "p.png", GRAY, "P", transparency=0), background="black")
    assert palette.getextrema() == ((0, 250),) * 3


def test_photos_are_rotated_as_the_camera_says(tmp_path):
    tags = Image.Exif()
    tags[0x0112] = 6
    pixels = np.repeat(np.arange(64, dtype=np.uint8)[None], 32, axis=0)
    path = save(tmp_path / "a.png", pixels, exif=tags)
    np.testing.assert_array_equal(np.asarray(read_image(path))[..., 0], np.rot90(pixels, -1))


def test_given_edges_are_left_as_they_are_on_black(tmp_path):
    pixels = NOISE[:16, :16]
    np.testing.assert_array_equal(EdgeSource(save(tmp_path / "a.png", pixels), "--control-image").load(16, 16), pixels)
    white = save(tmp_path / "b.png", np.dstack([np.full((64, 64, 3), 255, np.uint8), ALPHA]))
    np.testing.assert_array_equal(np.asarray(EdgeSource(white, "--control-image").load(64, 64))[..., 0], ALPHA)


@pytest.mark.parametrize(("fit", "height", "width"), [("crop", 32, 32), ("pad", 16, 16), ("stretch", 32, 16)])
def test_another_shape_is_cropped_padded_or_stretched(fit, height, width, tmp_path):
    wide = save(tmp_path / "wide.png", np.pad(GRAY, ((0, 0), (32, 32))), "RGB")
    rows, columns = np.nonzero(np.asarray(EdgeSource(wide, fit=fit).load(64, 64))[..., 0])
    assert (np.ptp(rows), np.ptp(columns)) == (pytest.approx(height, abs=3), pytest.approx(width, abs=3))
    thin = save(tmp_path / "thin.png", np.full((600, 1), 9, np.uint8))
    assert EdgeSource(thin, fit=fit).load(64, 32).size == (32, 64)


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "webp"])
def test_files_that_were_cut_off_are_detected(kind, tmp_path):
    path = save(tmp_path / f"a.{kind}", NOISE)
    EdgeSource(path).check()
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])
    for use in (EdgeSource.check, lambda source: source.load(8, 8)):
        with pytest.raises(UserError, match=rf"a\.{kind} cannot be read as an image"):
            use(EdgeSource(path))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("A red circle!", "a-red-circle"), ("../../etc/passwd", "etc-passwd"), ("crème brûlée", "creme-brulee"),
        ("Ёлка й ガ 고양이 İÉ", "ёлка-й-ガ-고양이-ie"), ("قطة/كلب\u202e", "قطة-كلب"), ("🙂 \ud800", "image"),
        ("猫" * 100, "猫" * 40), ("con\0trol\n\\", "con-trol"),
    ],
)  # fmt: skip
def test_slug_is_safe_in_any_file_system(prompt, expected):
    assert slugify(prompt) == expected


def test_settings_survive_the_file(tmp_path):
    settings = {"prompt": "une étoile 一 \n\"", "seed": 2**62, "tome": None, "nested": {"a": [1, 2]}}
    write_image(tmp_path / "a.png", Image.fromarray(GRAY), settings)
    assert read_settings(tmp_path / "a.png") == settings
    with pytest.raises(UserError, match="holds no settings"):
        read_settings(save(tmp_path / "b.png", GRAY))


@pytest.mark.parametrize("fault", [OSError(28, "No space left"), RuntimeError("encoder"), KeyboardInterrupt()])
def test_failed_write_leaves_the_old_file_alone(tmp_path, fault):
    (tmp_path / "a.png").write_bytes(b"old")

    def write(file):
        file.write(b"half of it")
        raise fault

    with pytest.raises((UserError, RuntimeError, KeyboardInterrupt)):
        write_atomically(tmp_path / "a.png", write, overwrite=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.png", b"old")]


def test_file_is_on_the_disk_before_it_gets_its_name_and_replaces_none(tmp_path, monkeypatch):
    path, synced, fsync = tmp_path / "a.json", [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(path.exists()), fsync(descriptor)))
    write_json(path, {"psnr_db": None}, overwrite=False)
    assert synced == [False, True]  # the file before it gets its name, the folder after
    with pytest.raises(UserError, match="exists already"):
        write_json(path, {}, overwrite=False)
    monkeypatch.setattr(os, "fsencode", lambda path: str(path).encode("ascii"))
    with pytest.raises(UserError, match="names are in ascii; set the environment variable LC_ALL"):
        prepare_folder(tmp_path, ["一只猫.png"], overwrite=True)
