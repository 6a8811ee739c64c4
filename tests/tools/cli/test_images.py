"""Image files: read as people see them, as edges for a ControlNet; written whole, with their settings inside."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.errors import ToMeValueError, UserError
from ppdiffusers_tome.files import write_atomically, write_json
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


def test_files_of_all_kinds_become_rgb_as_people_see_them(tmp_path):
    gray, white = np.where(SQUARE, 255, 0)[..., None].repeat(3, 2), np.full((64, 64, 3), 255, np.uint8)
    for pixels in (SQUARE.astype(np.uint16) * 4095, SQUARE.astype(np.float32)):
        np.testing.assert_array_equal(read_image(save(tmp_path / "a.tiff", pixels)), gray)
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.png", np.dstack([0 * white, 255 - ALPHA]))), gray)
    assert read_image(save(tmp_path / "a.jpg", GRAY, "CMYK")).mode == "RGB"
    palette = read_image(save(tmp_path / "p.png", GRAY, "P", transparency=0), background="black")
    assert palette.getextrema() == ((0, 250),) * 3
    tags = Image.Exif()
    tags[0x0112] = 6  # turned by the camera
    turned = read_image(save(tmp_path / "a.png", NOISE, exif=tags))
    np.testing.assert_array_equal(turned, np.rot90(NOISE, -1))


def test_edges_are_of_the_middle_and_given_ones_are_left_as_they_are_on_black(tmp_path):
    wide = EdgeSource(save(tmp_path / "wide.png", np.pad(GRAY, ((0, 0), (32, 32))), "RGB")).load(64, 64)
    np.testing.assert_array_equal(wide, EdgeSource(save(tmp_path / "square.png", GRAY, "RGB")).load(64, 64))
    pixels = NOISE[:16, :16]
    np.testing.assert_array_equal(EdgeSource(save(tmp_path / "a.png", pixels), "--control-image").load(16, 16), pixels)
    white = save(tmp_path / "b.png", np.dstack([np.full((64, 64, 3), 255, np.uint8), ALPHA]))
    np.testing.assert_array_equal(np.asarray(EdgeSource(white, "--control-image").load(64, 64))[..., 0], ALPHA)


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
        ("A red circle!", "a-red-circle"), ("../../etc/passwd", "etc-passwd"), ("cre\u0300me", "crème"),
        ("Ёлка й ガ 고양이", "ёлка-й-ガ-고양이"), ("قطة/كلب\u202e", "قطة-كلب"), ("🙂 \ud800", "image"),
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


def test_file_is_on_the_disk_before_it_gets_its_name_and_replaces_none(tmp_path, monkeypatch):
    path, synced, fsync = tmp_path / "a.json", [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(path.exists()), fsync(descriptor)))
    write_json(path, {"psnr_db": None}, overwrite=False)
    assert synced == [False]
    with pytest.raises(ToMeValueError, match="exists already"):
        write_json(path, {}, overwrite=False)

    def write(file):
        file.write(b"half of it")
        raise OSError(28, "No space left")

    with pytest.raises(ToMeValueError, match="No space left"):
        write_atomically(path, write, overwrite=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.json", b'{\n  "psnr_db": null\n}\n')]
