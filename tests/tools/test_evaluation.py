"""Configurations, rows and differences of an evaluation."""

from __future__ import annotations

import argparse
import json
import math

import numpy as np
import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluate import configurations
from ppdiffusers_tome.tools.evaluate.configurations import Configuration, make_merged, make_unmerged, parse_compared
from ppdiffusers_tome.tools.evaluate.plot import plot_report
from ppdiffusers_tome.tools.evaluate.report import PSNR, SPEED_UP, Report, Row, make_differences, make_table
from ppdiffusers_tome.tools.evaluate.samples import Sample
from ppdiffusers_tome.tools.generation.arguments import add_tome_arguments

HALF, MOST, TILES = (make_merged(ToMeConfig(ratio, tile=tile)) for ratio, tile in ((0.5, None), (0.7, None), (0.5, 16)))


def parse(*arguments: str) -> list[Configuration]:
    parser = argparse.ArgumentParser()
    configurations.add_compared_arguments(parser)
    add_tome_arguments(parser)
    return parse_compared(parser.parse_args(arguments), steps=10)


def test_names_and_families_tell_settings_apart():
    assert (HALF.name, HALF.family) == ("ratio 0.5", "merged")
    fast = make_merged(ToMeConfig(ratio=0.7, tile=16, seed=3, method="keys"))
    assert (fast.name, fast.family) == ("ratio 0.7, seed 3, tile 16, method keys", "merged, tile 16, method keys")


def test_presets_and_files_of_settings_are_read(tmp_path):
    (tmp_path / "other").mkdir()
    for path, ratio in ((tmp_path / "careful.json", 0.3), (tmp_path / "other" / "careful.json", 0.4)):
        ToMeConfig(ratio=ratio, tile=8).save(path)
    careful = ["--configs", "quality", str(tmp_path / "careful.json")]
    assert parse(*careful) == [
        make_unmerged(), Configuration("quality", ToMeConfig.preset("quality"), "quality"),
        Configuration("careful", ToMeConfig(ratio=0.3, tile=8), "merged, tile 8"),
    ]  # fmt: skip
    *_, with_option = parse(*careful, "--max-downsample", "1")
    assert with_option == make_merged(ToMeConfig(ratio=0.3, tile=8, max_downsample=1), "careful, max_downsample 1")
    with pytest.raises(UserError, match="two different configurations are called 'careful'"):
        parse("--configs", str(tmp_path / "careful.json"), str(tmp_path / "other" / "careful.json"))
    assert [(each.name, each.steps) for each in parse("--ratios", "--fewer-steps", "1", "9")[1:]] == [
        ("1 step", 1), ("9 steps", 9)
    ]  # fmt: skip
    assert parse("--ratios", "0", "--cache", "0.5")[1:] == [make_merged(ToMeConfig(0.0, cache=0.5))]
    with pytest.raises(UserError, match="--tile has no effect without merging"):
        parse("--ratios", "--fewer-steps", "1", "--tile", "16")
    with pytest.raises(UserError, match="--fewer-steps 10 must be at least 1 and below 10"):
        parse("--fewer-steps", "10")


def make_row(configuration: Configuration, speed: float, psnrs: list[float] | None, num_images: int) -> Row:
    ssim, flip = None if psnrs is None else 0.9, None if psnrs is None else 0.1
    samples = [
        Sample("p", seed, 10 / speed, 10.0, None if seed else 5, 7, None if psnrs is None else psnrs[seed], ssim, flip)
        for seed in range(num_images)
    ]
    return Row(configuration, samples)


def summarize(num_images: int = 8, gap: float = 10.0) -> list[Row]:
    difficulty = np.random.default_rng(0).normal(30, 5, num_images)  # of the images, far larger than the noise
    noise = 0.1 * (-1) ** np.arange(num_images)
    return [
        make_row(make_unmerged(), 1.0, None, num_images), make_row(HALF, 1.5, difficulty.tolist(), num_images),
        make_row(MOST, 2.0, (difficulty - gap + noise).tolist(), num_images),
    ]  # fmt: skip


def test_rows_are_medians_and_the_frontier():
    plain, half, _ = rows = summarize()
    assert (plain.medians[SPEED_UP].median, half.medians[SPEED_UP].median) == (1, 1.5)
    assert (plain.psnr, plain.peaks) == (math.inf, {"denoising_peak_bytes": None, "peak_bytes": 7})
    values = json.loads(json.dumps(half.to_dict(), allow_nan=False))
    assert values["psnr_db"]["interval"] is not None
    assert [Sample(**each) for each in values["samples"]] == half.samples
    slower = make_row(TILES, 1.4, [20.0] * 8, 8)
    assert [row[1] for row in make_table([*rows, slower]).rows] == ["yes"] * 3 + [""]


def test_differences_are_found_image_by_image():
    """Although the intervals of both medians overlap."""
    rows = summarize(gap=1.0)
    assert rows[1].medians[PSNR].interval[0] < rows[2].medians[PSNR].interval[1]
    table = make_differences(rows)
    assert table.headings == ("differences", "less", "speed-up", "PSNR (dB)", "SSIM", "FLIP")
    ((first, second, _, psnr, ssim, _),) = table.rows
    assert (first, second, psnr[:3], ssim) == ("ratio 0.5", "ratio 0.7", "+1.", "~+0.000")
    ((*_, psnr, _, _),) = make_differences(summarize(gap=0.0)).rows
    assert psnr.startswith("~")


def test_the_plot_omits_identical_images():
    plain, half, most = summarize()
    run = {"model": "m", "width": 8, "height": 8, "steps": 1, "scheduler": "s", "guidance_scale": 1, "dtype": "float32",
           "prompts": ["p"], "seeds": [0]}  # fmt: skip
    blue, orange = (0x1F, 0x77, 0xB4), (0xFF, 0x7F, 0x0E)

    def plot_colors(*rows: Row) -> set[tuple[int, int, int]]:
        plot = plot_report(Report("Title", run, {"memory": "all"}, rows))
        return {color for _, color in plot.getcolors(10**6)} & {blue, orange}

    other = Row(TILES, half.samples)
    assert plot_colors(plain, half, most, other) == {blue, orange}
    assert plot_colors(plain, half) == {blue}
    assert plot_colors(plain) == set()
