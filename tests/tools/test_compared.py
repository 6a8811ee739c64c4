"""What ``compare`` is asked to compare, and the rows of its table."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.commands import compare
from ppdiffusers_tome.tools.compare.configurations import UNMERGED, Configuration, parse_compared
from ppdiffusers_tome.tools.compare.report import Report, Row
from ppdiffusers_tome.tools.compare.samples import Sample
from ppdiffusers_tome.tools.generation.prompts import parse_prompts

HALF = Configuration("ratio 0.5", ToMeConfig(0.5))


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return parser.parse_args(arguments)


def parse_configurations(*arguments: str) -> list[Configuration]:
    return parse_compared(parse(*arguments), steps=10)


def test_presets_and_files_of_settings_are_read(tmp_path):
    (tmp_path / "other").mkdir()
    for path, ratio in ((tmp_path / "careful.json", 0.3), (tmp_path / "other" / "careful.json", 0.4)):
        ToMeConfig(ratio=ratio, tile=8).save(path)
    careful = ["--configs", "quality", str(tmp_path / "careful.json")]
    assert parse_configurations() == [UNMERGED, Configuration("balanced", ToMeConfig.preset("balanced"))]
    assert parse_configurations(*careful) == [
        UNMERGED, Configuration("quality", ToMeConfig.preset("quality")),
        Configuration("careful", ToMeConfig(ratio=0.3, tile=8)),
    ]  # fmt: skip
    *_, with_option = parse_configurations(*careful, "--max-downsample", "1")
    assert with_option == Configuration("careful, max_downsample 1", ToMeConfig(ratio=0.3, tile=8, max_downsample=1))
    with pytest.raises(UserError, match="two different configurations are called 'careful'"):
        parse_configurations("--configs", str(tmp_path / "careful.json"), str(tmp_path / "other" / "careful.json"))
    assert [(each.name, each.steps) for each in parse_configurations("--ratios", "--fewer-steps", "1", "9")[1:]] == [
        ("1 step", 1), ("9 steps", 9)
    ]  # fmt: skip
    cached = ToMeConfig(0.0, cache=0.5)
    assert parse_configurations("--ratios", "0", "--cache", "0.5")[1:] == [Configuration(cached.summary, cached)]
    with pytest.raises(UserError, match="--tile has no effect without merging"):
        parse_configurations("--ratios", "--fewer-steps", "1", "--tile", "16")
    with pytest.raises(UserError, match="--fewer-steps 10 must be at least 1 and below 10"):
        parse_configurations("--fewer-steps", "10")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_prompts_come_from_files_too(tmp_path, encoding):
    path = tmp_path / "prompts"
    path.write_bytes("a red star\r\n \nein gelber Stern ⭐".encode(encoding))
    given = ["--prompts", str(path), "--prompt", "a dog"]
    assert parse_prompts(parse(*given)) == ["a dog", "a red star", "ein gelber Stern ⭐"]
    assert parse_prompts(parse(), ["a cat"]) == ["a cat"]


def make_row(configuration: Configuration, speed: float, psnrs: list[float] | None, num_images: int) -> Row:
    ssim = None if psnrs is None else 0.9
    samples = [
        Sample("p", seed, 10 / speed, 10.0, None if seed else 5, 7, None if psnrs is None else psnrs[seed], ssim)
        for seed in range(num_images)
    ]
    return Row(configuration, samples)


RUN = dict(
    model="m", width=64, height=64, steps=2, scheduler="s", guidance_scale=1.0, dtype="float32", controlnet=None,
    xformers=False, compile=None, prompts=["p"], seeds=[0],
)  # fmt: skip


def test_rows_are_medians_with_intervals_and_the_lowest():
    psnrs = np.random.default_rng(0).normal(30, 5, 8).tolist()
    plain, half = make_row(UNMERGED, 1.0, None, 8), make_row(HALF, 1.5, psnrs, 8)
    assert (plain.peaks, plain.medians.keys()) == (
        {"denoising_peak_bytes": None, "peak_bytes": 7}, {"seconds", "speed_up"}
    )  # fmt: skip
    values = json.loads(json.dumps(half.to_dict()))
    low, high = values["psnr_db"]["interval"]
    assert low < values["psnr_db"]["median"] < high
    assert [Sample(**each) for each in values["samples"]] == half.samples
    (first, *_), (name, _, speed_up, psnr, *_) = Report({}, {}, [plain, half]).make_table().rows
    assert (first, name, speed_up) == ("unmerged", "ratio 0.5", "1.50x")
    assert psnr == f"{values['psnr_db']['median']:.1f} [{low:.1f}, {high:.1f}] ({min(psnrs):.1f})"
    report = Report(RUN, {"memory": "of tensors"}, [plain, half])
    assert not any("busy" in note for note in report.notes)
    half.samples[0] = replace(half.samples[0], is_disturbed=True)
    assert "the machine was busy while 1 of 16 images were measured" in report.notes[-1]
    identical = make_row(HALF, 1.5, [math.inf] * 3, 3)
    assert (identical.medians["psnr_db"].median, identical.format("psnr_db")) == (math.inf, "identical")
