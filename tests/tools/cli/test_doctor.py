"""``doctor``: the table of all pipelines, and the estimate for one model."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import ppdiffusers
import ppdiffusers.pipelines
import pytest
from ppdiffusers.models.attention_processor import AttnProcessor, SlicedAttnProcessor

import tiny
from ppdiffusers_tome import ToMeConfig, apply_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.masks import expand_to_heads
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.tools.cli.commands.doctor import verdict
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.doctor import estimate
from ppdiffusers_tome.tools.doctor.coverage import inspect_installed
from ppdiffusers_tome.tools.doctor.estimate import Estimate, estimates, latent_size


def test_the_table_has_a_line_a_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    found, estimated = capsys.readouterr().out.split("\n\n", 1)
    heading, _, *lines = found.splitlines()
    assert heading.split() == ["pipeline", "merges", "where,", "or", "why", "not"]
    exported = {name for names in ppdiffusers.pipelines._import_structure.values() for name in names}
    exported = {name for name in exported if re.fullmatch(r".+Pipeline(Legacy|Safe)?", name)}
    assert exported - {"DiffusionPipeline"} <= {line.split()[0] for line in lines}
    assert {line.split()[1] for line in lines} == {"yes", "no"}
    # An estimate is called one before any number, and says how to replace it.
    words, table = estimated.split("\n\n", 1)
    assert "an estimate, not a measurement" in words
    assert re.search(r"^FLUX.1 dev\* +(\d\.\d\dx ?){3} +(\d\.\d\dx ?){3} +(\d\.\d\dx ?){3}$", table, re.MULTILINE)
    assert table.endswith("measure it on your GPU: ppdiffusers-tome bench gpu\n")


def test_a_pipeline_that_was_never_inspected_says_so() -> None:
    names = ["NewPipeline", "NewPipelineOutput", "StableDiffusionPipeline"]
    package = SimpleNamespace(_import_structure={"new": names})
    rows = {row.name: row for row in inspect_installed(package)}
    assert rows["StableDiffusionPipeline"].merges
    assert not rows["NewPipeline"].merges
    assert "doctor --model" in rows["NewPipeline"].where
    assert "NewPipelineOutput" not in rows


def test_one_model_is_told_its_tokens_and_gain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "bundled", "--height", "256", "--width", "128", "--ratio", "0.25"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("bundled: StableDiffusionPipeline, 256x128, ratio 0.25, float32, plain attention, on CPU")
    assert re.search(r"unet +1 +32x16 +3 +512 -> 384 +\d\.\d{4} -> \d\.\d{4} \(\d+\.\d\dx\)", output)
    assert re.search(r"unet +8 +4x2 +1 +none: max_downsample=None reaches the finest level", output)
    assert "Expect " in output


def test_fewer_keys_are_timed_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "bundled", "--height", "256", "--width", "256", "--config", "quality"]) == 0
    output = capsys.readouterr().out
    assert "256x256, preset quality (ratio 0.75, method todo), float32" in output
    assert re.search(r"unet +1 +32x32 +3 +1024 -> 256 +\d\.\d{4} -> \d\.\d{4} \(\d+\.\d\dx\)", output)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "nowhere/at all"], "--model"),
        (["--model", "bundled", "--height", "100"], "--height 100 must be a multiple of 8"),
        (["--model", "bundled", "--ratio", "0.9"], "below 0.75"),
        (["--model", "bundled", "--xformers", "--chunked-attention"], "give one of them"),
        (["--model", "bundled", "--xformers"], "--xformers needs a GPU"),
        (["--model", "bundled", "--dtype", "float16"], "--dtype float16 needs a GPU"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


GRIDS = [
    (build, *size)
    for build in (tiny.unet, tiny.sdxl_unet, lambda: tiny.unet(levels=4))
    for size in ((16, 16), (17, 26), (9, 32))
] + [(tiny.dit, 16, 16), (tiny.dit, 8, 32)]  # upstream's DiT wants a square number of patches


@pytest.mark.parametrize(("build", "height", "width"), GRIDS)
def test_the_grids_are_those_that_a_call_has(build: tiny.Call, height: int, width: int) -> None:
    """Each block of a real call is called with as many tokens as was said."""
    model = build()
    said = {each.level: each.grid.num_tokens for each in estimates(model, ToMeConfig(), height, width)}
    seen: dict[int, set[int]] = {}
    for site in find_blocks(model):
        site.block.register_forward_pre_hook(
            lambda block, inputs, level=site.level: seen.setdefault(level, set()).add(inputs[0].shape[1])
        )
    run = tiny.run_dit if build is tiny.dit else tiny.run_unet
    run(model, height=height, width=width)
    assert {level: {tokens} for level, tokens in said.items()} == seen


def test_a_model_is_left_as_it_was() -> None:
    model = tiny.unet()
    plain, before, random = tiny.run_unet(model), tiny.snapshot(model), tiny.random_states()
    estimates(model, ToMeConfig(0.5), 16, 16)
    assert tiny.snapshot(model) == before
    assert tiny.random_states() == random
    assert (tiny.run_unet(model) == plain).all()


@pytest.mark.parametrize("method", ["todo", "pool", "keys"])
@pytest.mark.parametrize("processor", [AttnProcessor, lambda: SlicedAttnProcessor(1)], ids=["plain", "sliced"])
def test_fewer_keys_are_timed_as_processors_take_them(
    processor: tiny.Call, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what tells them sizes, and whatever is on the model, ToMe or a user's own, stays."""
    unet = tiny.unet()
    unet.set_attn_processor(processor())
    apply_tome(unet, 0.5, method=method)
    before, hooked = tiny.snapshot(unet), tiny.run_unet(unet)
    shapes = []
    monkeypatch.setattr(
        estimate, "expand_to_heads",
        lambda *given: shapes.append(expand_to_heads(*given).shape) or expand_to_heads(*given),
    )  # fmt: skip
    found = estimates(unet, ToMeConfig(0.5, method=method), 16, 16)[0]
    assert found.merged_seconds is not None
    left = found.grid.num_tokens - found.num_merged
    assert {shape[-1] for shape in shapes} == (set() if method == "todo" else {left})
    assert tiny.snapshot(unet) == before
    assert np.array_equal(tiny.run_unet(unet), hooked)


def test_reasons_why_nothing_merges_at_a_level() -> None:
    model = tiny.unet()
    beyond, small, none = (
        estimates(model, config, *size)
        for config, size in (
            (ToMeConfig(), (16, 16)), (ToMeConfig(0.9, sx=8, sy=8, max_downsample=2), (4, 16)),
            (ToMeConfig(0.001), (16, 16)),
        )
    )  # fmt: skip
    assert [each.reason for each in beyond] == [None, "none: max_downsample=None reaches the finest level"]
    assert [each.reason for each in small] == ["smaller than one cell of 8x8 tokens"] * 2
    assert none[0].reason == "ratio 0.001 of 256 tokens is none"
    assert "Nothing merges at this size and ratio" in verdict(none)


def test_attention_that_does_not_fit_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppdiffusers_tome.tools.doctor.estimate.get_free_device_memory", lambda: 2**20)
    found = estimates(tiny.unet(), ToMeConfig(), 64, 64)[0]
    assert found.seconds is None
    assert "GiB a row for its scores alone" in (found.untimed or "")
    assert "was not timed: unmerged attention needs" in verdict([found])


def test_the_verdict_weighs_all_blocks() -> None:
    slow = Estimate("unet", 1, Grid(8, 8), 3, 32, None, 0.01, 0.02)
    assert "Expect no speed-up" in verdict([slow])
    fast = dataclasses.replace(slow, level=2, seconds=0.1, merged_seconds=0.05)
    assert "0.2100 s a step and row instead of 0.3300 s, 1.57 times as fast" in verdict([slow, fast])


def test_latent_size_is_the_pipelines_own_where_none_is_given() -> None:
    pipe = tiny.pipeline()
    assert latent_size(pipe, None, None) == ((16, 16), 2)
    assert latent_size(pipe, 64, None) == ((32, 16), 2)


def test_a_pipeline_without_blocks_is_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unet = tiny.build(
        ppdiffusers.UNet2DModel, sample_size=8, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, add_attention=False,
    )  # fmt: skip
    ppdiffusers.DDPMPipeline(unet, ppdiffusers.DDPMScheduler()).save_pretrained(str(tmp_path))
    assert main(["doctor", "--model", str(tmp_path)]) == 0
    assert "DDPMPipeline has nothing to merge" in capsys.readouterr().out
