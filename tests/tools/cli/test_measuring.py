"""Seconds, memory, similarity and the sheet: what the commands measure with and show."""

from __future__ import annotations

import math
import time

import numpy as np
import paddle
import pytest
from PIL import Image

from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.measure.memory import Meter, highest_peak
from ppdiffusers_tome.tools.measure.similarity import compare_images
from ppdiffusers_tome.tools.measure.units import format_bytes
from ppdiffusers_tome.tuning import measurement

MIB = 2**20


def hold(mebibytes: int) -> float:
    """Hold a tensor of that size for a moment."""
    return float(paddle.ones([mebibytes * MIB // 4]).sum())


def peak_of(*mebibytes: int) -> int | None:
    """The peak of a piece of work that holds tensors of such sizes, one after the other."""
    meter = Meter()
    for size in mebibytes:
        hold(size)
    return meter.peak_bytes()


def test_seconds_are_those_of_the_work():
    meter = Meter()
    time.sleep(0.05)
    assert 0.05 <= meter.seconds() < 1


def test_peak_belongs_to_the_work_alone():
    if peak_of(1) is None:
        pytest.skip("this system measures no memory")
    base = peak_of()
    # A large peak before a small one: what cannot be reset would give the large one twice.
    peaks = [peak_of(size) - base for size in (400, 100, 200)]
    assert [round(peak / MIB) for peak in peaks] == [pytest.approx(size, abs=12) for size in (400, 100, 200)]


def test_a_peak_is_the_highest_so_far():
    meter = Meter()
    hold(100)
    before = meter.peak_bytes()
    hold(300)
    if before is None:
        pytest.skip("this system measures no memory")
    assert (meter.peak_bytes() - before) / MIB == pytest.approx(200, abs=12)


def test_what_cannot_be_reset_is_not_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(measurement, "device_memory", measurement.ResidentMemory)
    monkeypatch.setattr(measurement, "_CLEAR_PEAK", tmp_path / "no" / "clear_refs")
    assert peak_of(1) is None
    assert format_bytes(None) == "not measured"
    assert highest_peak([1, None]) is None
    assert highest_peak(iter([1, 3, 2])) == 3
    assert format_bytes(1536 * MIB) == "1,536 MiB"


def test_quality_of_identical_and_of_shifted_pictures():
    picture = np.random.default_rng(0).integers(0, 200, (16, 24, 3), np.uint8)
    same, brighter = compare_images(picture, picture), compare_images(picture, picture + np.uint8(10))
    assert same.psnr == math.inf
    assert (same.ssim, same.flip) == (1, 0)
    assert 0.01 < brighter.flip < 0.2
    assert brighter.psnr == pytest.approx(20 * math.log10(255 / 10))
    assert 0.9 < brighter.ssim < 1


@pytest.mark.parametrize("size", [(64, 64), (512, 512), (1024, 512)])
@pytest.mark.parametrize("columns", [1, 4])
def test_sheet_holds_every_picture(size, columns):
    colours = [(10 * row, 60 * column, 99) for row in range(2) for column in range(columns)]
    pictures = [Image.new("RGB", size, colour) for colour in colours]
    rows = [
        ("a prompt that is long " * 9, [Cell(picture, "1.00 s") for picture in pictures[row * columns :][:columns]])
        for row in range(2)
    ]
    labels = [Label(f"ratio {column}", ("1.00 s", "a line")) for column in range(columns)]
    sheet = np.asarray(make_sheet(Label("Title", ("a note " * 20,)), labels, rows))
    areas = [(sheet == colour).all(-1).sum() for colour in colours]
    assert len(set(areas)) == 1
    assert areas[0] >= 256 * 256


def test_flip_is_more_where_the_eye_sees_more():
    """Of two pictures at the same PSNR: fine noise is hardly seen, another colour all over is."""
    rng = np.random.default_rng(0)
    picture = np.full((96, 96, 3), 120, np.uint8)
    noisy = (picture + rng.choice([-10, 10], picture.shape)).astype(np.uint8)
    tinted = (picture + np.array([10, -10, 10])).astype(np.uint8)
    noise, tint = compare_images(picture, noisy), compare_images(picture, tinted)
    assert noise.psnr == pytest.approx(tint.psnr)
    assert 0 < 1.5 * noise.flip < tint.flip < 1
