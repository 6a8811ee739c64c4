"""Configurations, rows and differences of an evaluation."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tiny
from ppdiffusers_tome import ToMeConfig, applied_tome
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.tools.evaluate import differences
from ppdiffusers_tome.tools.evaluate.configurations import (
    Configuration,
    check_names,
    ours,
    port,
    read_settings_files,
    read_suite,
    unmerged,
)
from ppdiffusers_tome.tools.evaluate.frontier import find_frontier
from ppdiffusers_tome.tools.evaluate.plot import plot_rows
from ppdiffusers_tome.tools.evaluate.runner import find_merging_levels, time_blocks
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder, Sample
from ppdiffusers_tome.tools.evaluate.summary import BLOCK_SPEED_UP, PSNR, SPEED_UP, Row, make_rows, make_table

HALF, MOST = ours(ToMeConfig(ratio=0.5)), ours(ToMeConfig(ratio=0.7))


def test_nothing_dominates_the_frontier() -> None:
    points = [(1, math.inf), (2, 30), (2, 30), (3, 20), (1.5, 25), (3, 10), (0.9, math.inf)]
    assert find_frontier(points) == [True, True, True, True, False, False, False]


def test_each_configuration_applies_its_settings() -> None:
    pipe = tiny.pipeline()
    before = tiny.snapshot(pipe.unet)
    tiles = ours(ToMeConfig(ratio=0.5, tile=16))
    tiles.apply(pipe)
    assert applied_tome(pipe).config == tiles.tome
    port(0.7, 2).apply(pipe)
    assert applied_tome(pipe) is None
    assert (pipe.unet._tome_info["args"]["ratio"], pipe.unet._tome_info["args"]["max_downsample"]) == (0.7, 2)
    unmerged().apply(pipe)
    assert tiny.snapshot(pipe.unet) == before
    assert find_merging_levels(pipe, [unmerged(), ours(ToMeConfig(max_downsample=2))]) == [1, 2]


def test_names_and_families_tell_settings_apart() -> None:
    assert (HALF.name, HALF.family) == ("ours 0.5", "ours")
    assert port(0.5, 2).family == "port, max_downsample 2"
    fast = ours(ToMeConfig(ratio=0.7, tile=16, reuse_blocks=True, use_rand=False, method="tofu"))
    assert fast.name == "ours tofu 0.7, no use_rand, tile 16, reuse_blocks"
    assert fast.family == "ours tofu, no use_rand, tile 16, reuse_blocks"
    assert [each.name for each in check_names([HALF, port(0.5), HALF])] == ["unmerged", "ours 0.5", "port 0.5"]
    for name in ("ours 0.5", "unmerged"):
        with pytest.raises(UserError, match=f"two different configurations are called '{name}'"):
            check_names([HALF, ours(ToMeConfig(ratio=0.25), name)])


def test_presets_files_of_settings_and_suites_are_read(tmp_path: Path) -> None:
    ToMeConfig(ratio=0.3, tile=8).save(tmp_path / "careful.json")
    quality, careful = read_settings_files(["quality", str(tmp_path / "careful.json")])
    assert quality == Configuration("quality", "ours", ToMeConfig.preset("quality"), "quality")
    assert careful == Configuration("careful", "ours", ToMeConfig(ratio=0.3, tile=8), "ours, tile 8")
    path = tmp_path / "suite.jsonl"
    path.write_text(
        '{"name": "port half", "contender": "port", "ratio": 0.5, "max_downsample": 2}\n\n'
        '{"name": "tiles", "family": "in tiles", "ratio": 0.25, "tile": 16}\n'
    )
    tiles = Configuration("tiles", "ours", ToMeConfig(ratio=0.25, tile=16), "in tiles")
    assert read_suite(path) == [port(0.5, 2, "port half"), tiles]
    for line, words in (
        ("", "holds no configuration"), ("{", "line 1: "), ("[1]", "got list, not an object"),
        ('{"ratio": 0.5}', "name=None must be"), ('{"name": "a", "family": 3}', "family=3 must be"),
        ('{"name": "a", "contender": "theirs"}', "must be 'ours' or 'port'"),
        ('{"name": "a", "contender": "port", "tile": 16}', "the port has no tile"),
    ):  # fmt: skip
        path.write_text(line)
        with pytest.raises(UserError, match=rf"--suite .*suite\.jsonl.*{re.escape(words)}"):
            read_suite(path)


@pytest.mark.parametrize("configuration", [unmerged(), port(0.5), HALF], ids=lambda each: each.contender)
def test_the_clock_of_blocks_covers_all_their_hooks(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, now = tiny.pipeline(), [0]
    (block, *_) = find_blocks(pipe.unet)

    def pause(*_: Any) -> None:
        now[0] += 1

    block.block.register_forward_pre_hook(pause)
    configuration.apply(pipe)
    block.block.register_forward_post_hook(pause)
    pipe.unet.conv_out.register_forward_pre_hook(pause)  # of another layer
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])  # time passes in the hooks alone
    hooks = [list(layer._forward_pre_hooks) for layer in pipe.unet.sublayers()]
    with time_blocks(pipe) as seconds:
        tiny.run_unet(pipe.unet)
    assert seconds[block.level] == 2
    assert [list(layer._forward_pre_hooks) for layer in pipe.unet.sublayers()] == hooks


def make_samples(speeds: list[float], psnrs: list[float] | None) -> list[Sample]:
    seconds, ssim, flip = {"1": 5.0, "2": 9.0}, None if psnrs is None else 0.9, None if psnrs is None else 0.1
    return [
        Sample("p", seed, 10 / speed, 10.0, seconds | {"1": 5 / speed**2}, seconds, None if seed else 5, 7,
               None if psnrs is None else psnrs[seed], ssim, flip)
        for seed, speed in enumerate(speeds)
    ]  # fmt: skip


def summarize(num_images: int = 8, gap: float = 10.0) -> list[Row]:
    rng = np.random.default_rng(0)
    difficulty = rng.normal(30, 5, num_images)  # of the images, far larger than the noise
    noise = 0.1 * (-1) ** np.arange(num_images)
    samples = {
        "unmerged": make_samples([1.0] * num_images, None),
        "ours 0.5": make_samples([1.5] * num_images, difficulty.tolist()),
        "ours 0.7": make_samples([2.0] * num_images, (difficulty - gap + noise).tolist()),
    }
    return make_rows([unmerged(), HALF, MOST], samples, [1])


def test_rows_are_medians_and_the_frontier() -> None:
    plain, half, most = rows = summarize()
    assert (plain.medians[SPEED_UP].median, half.medians[SPEED_UP].median) == (1, 1.5)
    assert most.medians[BLOCK_SPEED_UP].median == 4
    assert plain.psnr == math.inf
    assert [row.on_frontier for row in rows] == [True, True, True]
    assert plain.peaks == {"denoising_peak_bytes": None, "peak_bytes": 7}
    values = json.loads(json.dumps(half.to_dict(), allow_nan=False))
    assert values["psnr_db"]["interval"] is not None
    assert [Sample(**each) for each in values["samples"]] == half.samples
    written = make_table(rows).markdown()
    assert "| unmerged | blocks and whole | 5.00 s | 1.00x | 10.00 s | 1.00x | not measured | 0 MiB | - |" in written


def test_differences_are_found_image_by_image() -> None:
    """Although the intervals of both medians overlap."""
    rows = summarize(gap=1.0)
    assert rows[1].medians[PSNR].interval[0] < rows[2].medians[PSNR].interval[1]
    table = differences.make_table(rows)
    assert table.headings == ("differences", "less", "PSNR (dB)", "SSIM", "FLIP", "speed-up of blocks", "speed-up")
    ((first, second, psnr, ssim, *_),) = table.rows
    assert (first, second, psnr[:3], ssim) == ("ours 0.5", "ours 0.7", "+1.", "~+0.000")
    ((*_, psnr, _, _, _, _),) = differences.make_table(summarize(gap=0.0)).rows
    assert psnr.startswith("~")
    assert "significant with 3 images" in differences.describe(3)[0]


def test_images_have_files_of_their_own(tmp_path: Path) -> None:
    folder, case = ImageFolder(tmp_path, keeps_all=True), Case("a cat", 0)
    alike = [ours(ToMeConfig(), name) for name in ("tome 0.5", "tome 0,5")]
    folder.prepare(alike, [case], overwrite=False)
    for each, gray in zip(alike, (10, 200), strict=True):
        folder.write(each.name, case, Image.new("RGB", (8, 8), (gray,) * 3))
    assert [folder.open(each.name, case).getpixel((0, 0))[0] for each in alike] == [10, 200]
    long = "a very long prompt " * 9
    assert len({Case(prompt, seed).file_name for prompt in (long + "a", long + "b") for seed in (0, 1)}) == 4


def test_the_plot_omits_identical_images() -> None:
    plain, half, most = summarize()
    blue, orange = (0x3A, 0x78, 0xC9), (0xC9, 0x8A, 0x3A)

    def plot_colors(rows: list[Row]) -> set[tuple[int, int, int]]:
        return {color for _, color in plot_rows("Title", "note", rows).getcolors(10**6)} & {blue, orange}

    other = Row(port(0.5), half.samples, half.values, half.medians)
    assert plot_colors([plain, half, most, other]) == {blue, orange}
    assert plot_colors([plain, half]) == {blue}
    assert plot_colors([plain]) == set()
