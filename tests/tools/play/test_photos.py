"""Pictures that people hand over: all kinds that are meant well, and in words those that are not."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.tools.play.i18n.english import ENGLISH
from ppdiffusers_tome.tools.play.photos import MOST_BYTES, read_photo
from ppdiffusers_tome.tools.play.requests import RefusedError
from tools.play.conftest import data_of, png_of


def words_of(address: str) -> str:
    with pytest.raises(RefusedError) as refused:
        read_photo(address)
    return ENGLISH.refusal(refused.value)


def test_a_photo_is_as_it_was(bright_square: Image.Image) -> None:
    assert np.array_equal(np.asarray(read_photo(png_of(bright_square))), np.asarray(bright_square))


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "I;16", "RGBA", "LA"])
def test_all_kinds_of_pixels_are_seen_alike(bright_square: Image.Image, mode: str) -> None:
    if mode == "I;16":
        given = Image.fromarray(np.asarray(bright_square.convert("L")).astype(np.uint16) * 257)
    else:
        given = bright_square.convert(mode)
    seen = read_photo(png_of(given, "TIFF" if mode == "CMYK" else "PNG"))
    assert (seen.mode, seen.size) == ("RGB", bright_square.size)
    pixels = np.asarray(seen)
    assert pixels[45, 60].min() > 200
    assert pixels[5, 5].max() < 40


def test_of_an_animation_the_first_frame_is_taken(bright_square: Image.Image) -> None:
    black = Image.new("RGB", bright_square.size)
    seen = read_photo(png_of(bright_square, "GIF", save_all=True, append_images=[black, black]))
    assert np.asarray(seen)[45, 60].min() > 200


def test_a_photo_is_turned_as_its_camera_says(bright_square: Image.Image) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_photo(png_of(bright_square, "JPEG", exif=exif)).size == bright_square.size[::-1]


def test_large_ones_are_kept_smaller() -> None:
    assert read_photo(png_of(Image.new("L", (4096, 1024)))).size == (2048, 512)


@pytest.mark.parametrize(
    "content",
    [b"", b"just a text\n", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>"],
)
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    assert words_of(data_of(content)).startswith("The file cannot be read as a picture; choose one of PNG, JPEG")


@pytest.mark.parametrize("address", ["", "hello", "data:image/png;base64,%%%", "file:///etc/passwd", "/etc/passwd"])
def test_what_is_no_file_is_refused(address: str) -> None:
    assert "cannot be read as a picture" in words_of(address)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_a_picture_that_was_cut_off_is_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, kind)
    assert "cannot be read as a picture" in words_of(data_of(file.getvalue()[: len(file.getvalue()) // 2]))


def test_too_small_a_picture_is_refused() -> None:
    assert "1x1 pixels; choose one with 16 or more" in words_of(png_of(Image.new("RGB", (1, 1))))


def test_too_many_pixels_are_refused_before_they_are_unpacked() -> None:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")
    assert "cannot be read as a picture" in words_of(data_of(bomb))  # Pillow itself stops there
    assert "8,000x8,000 pixels; choose one of 50 megapixels" in words_of(png_of(Image.new("1", (8000, 8000))))


def test_too_large_a_file_is_refused_before_it_is_unpacked() -> None:
    assert words_of("data:image/png;base64," + "A" * (MOST_BYTES * 4 // 3 + 8)) == (
        "The file is larger than 20 MiB; choose a smaller one."
    )
