"""``doctor``: the table of all pipelines, and the estimate for one model."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import ppdiffusers
import ppdiffusers.pipelines
import pytest

import tiny
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.doctor.coverage import inspect_installed
from ppdiffusers_tome.tools.doctor.estimate import estimate_merging, find_latent_size, time_denoiser


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


def test_one_model_is_told_its_tokens_and_the_gain_of_a_whole_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "bundled", "--height", "256", "--width", "128", "--ratio", "0.25"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("bundled: StableDiffusionPipeline, 256x128, ratio 0.25, float32, plain attention, on CPU")
    assert re.search(r"unet +1 +32x16 +3 +512 -> 384", output)
    assert re.search(r"unet +8 +4x2 +1 +none: max_downsample=None reaches the finest level", output)
    assert re.search(r"Expect .*a whole call of unet takes \d+\.\d{3} s for an image instead of \d+\.\d{3} s", output)


def test_a_transformer_is_counted_in_latents(capsys: pytest.CaptureFixture[str]) -> None:
    """Its pipeline does not tell the scale between pixels and latents."""
    arguments = ["--model", "bundled-dit", "--height", "512", "--width", "512", "--config", "quality"]
    assert main(["doctor", *arguments]) == 0
    output = capsys.readouterr().out
    assert "512x512, preset quality (ratio 0.75, method todo), float32" in output
    assert re.search(r"transformer +2 +32x32 +6 +1024 -> 256", output)
    assert "a whole call of transformer takes" in output


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
    said = {each.level: each.grid.num_tokens for each in estimate_merging(model, ToMeConfig(), height, width)}
    seen: dict[int, set[int]] = {}
    for site in find_blocks(model):
        site.block.register_forward_pre_hook(
            lambda block, inputs, level=site.level: seen.setdefault(level, set()).add(inputs[0].shape[1])
        )
    run = tiny.run_dit if build is tiny.dit else tiny.run_unet
    run(model, height=height, width=width)
    assert {level: {tokens} for level, tokens in said.items()} == seen


def ddpm_pipeline(*, attention: bool) -> ppdiffusers.DDPMPipeline:
    unet = tiny.build(
        ppdiffusers.UNet2DModel, sample_size=16, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4,
        add_attention=attention, attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D" if attention else "DownBlock2D"),
        up_block_types=("AttnUpBlock2D" if attention else "UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return ppdiffusers.DDPMPipeline(unet, ppdiffusers.DDPMScheduler())


def test_timing_leaves_a_pipeline_as_it_was() -> None:
    pipe = ddpm_pipeline(attention=True)
    before, random = tiny.snapshot(pipe.unet), tiny.random_states()
    assert min(time_denoiser(pipe, "unet", ToMeConfig(0.5), 16, 16)) > 0
    assert tiny.snapshot(pipe.unet) == before
    assert tiny.random_states() == random


def test_a_pipeline_that_needs_more_than_a_prompt_is_not_timed() -> None:
    with pytest.raises(UserError, match="StableDiffusionPipeline cannot be called with a prompt alone"):
        time_denoiser(tiny.pipeline(), "unet", ToMeConfig(0.5), 32, 32)  # it has no tokenizer


def test_reasons_why_nothing_merges_at_a_level() -> None:
    model = tiny.unet()
    beyond, small, none = (
        estimate_merging(model, config, *size)
        for config, size in (
            (ToMeConfig(), (16, 16)), (ToMeConfig(0.9, sx=8, sy=8, max_downsample=2), (4, 16)),
            (ToMeConfig(0.001), (16, 16)),
        )
    )  # fmt: skip
    assert [each.reason for each in beyond] == [None, "none: max_downsample=None reaches the finest level"]
    assert [each.reason for each in small] == ["smaller than one cell of 8x8 tokens"] * 2
    assert none[0].reason == "ratio 0.001 of 256 tokens is none"


def test_attention_that_does_not_fit_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ppdiffusers_tome.tools.doctor.estimate.get_free_device_memory", lambda: 2**20)
    assert main(["doctor", "--model", "bundled"]) == 0
    assert "GiB for its scores alone; add --chunked-attention" in capsys.readouterr().out


def test_latent_size_is_the_pipelines_native_size_by_default() -> None:
    pipe = tiny.pipeline()
    assert find_latent_size(pipe, None, None) == ((16, 16), 2)
    assert find_latent_size(pipe, 64, None) == ((32, 16), 2)


def test_a_pipeline_without_blocks_is_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ddpm_pipeline(attention=False).save_pretrained(str(tmp_path))
    assert main(["doctor", "--model", str(tmp_path)]) == 0
    assert "DDPMPipeline has nothing to merge" in capsys.readouterr().out
