"""``doctor``: the table of all pipelines, and the estimate for one model."""

from __future__ import annotations

import re
from types import SimpleNamespace

import paddle
import ppdiffusers
import ppdiffusers.pipelines
import pytest

import tiny
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.state.block_call import WATCHERS, BlockCall
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.doctor import coverage as shipped
from ppdiffusers_tome.tools.doctor.coverage import inspect_installed
from ppdiffusers_tome.tools.doctor.environment import TESTED
from ppdiffusers_tome.tools.doctor.estimate import estimate_merging, find_latent_size, time_denoiser
from zoo.coverage import NEWEST, PAGE, coverage, format_page


def test_the_table_has_a_line_a_pipeline(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    exported = {name for names in ppdiffusers.pipelines._import_structure.values() for name in names}
    exported = {name for name in exported if re.fullmatch(r".+Pipeline(Legacy|Safe)?", name)}
    assert exported - {"DiffusionPipeline"} <= {line.split()[0] for line in lines}
    assert {line.split()[1] for line in lines} == {"yes", "no"}
    # One that was never inspected says so.
    package = SimpleNamespace(_import_structure={"new": ["NewPipeline", "NewPipelineOutput"]})
    rows = {row.name: row for row in inspect_installed(package)}
    assert not rows["NewPipeline"].merges
    assert "doctor --model" in rows["NewPipeline"].where
    assert "NewPipelineOutput" not in rows


def test_one_model_has_tokens_at_every_level_and_a_timed_call(capsys):
    assert main(["doctor", "--model", "photographs", "--height", "512", "--width", "256", "--config", "fast",
                 "--cache", "0.5"]) == 0  # fmt: skip
    output = capsys.readouterr().out
    assert output.startswith("photographs: StableDiffusionPipeline, 512x256, ratio 0.9375")
    assert "The cache over steps is not in these numbers" in output
    assert re.search(r"unet +1 +64x32 +3 +2048 -> 128", output)
    assert re.search(r"unet +8 +8x4 +1 +none: max_downsample=2 reaches level 2", output)
    assert re.search(r"memory of an image, computed, at least +unmerged +merged\n", output)
    assert re.search(r"peak, plain attention +\d+ MiB +\d+ MiB", output)
    assert re.search(r"Expect .*a whole call of unet takes \d+\.\d{3} s for an image instead of \d+\.\d{3} s", output)


def test_transformer_is_counted_in_latents_at_its_own_size(capsys, monkeypatch):
    """A DiTPipeline does not tell the scale between pixels and latents, and ignores a size."""
    monkeypatch.setattr("ppdiffusers_tome.tools.doctor.estimate.time_denoiser", lambda *_, **__: (1.0, 0.1))
    assert main(["doctor", "--model", "dit", "--height", "512", "--config", "quality"]) == 0
    output = capsys.readouterr().out
    assert "512x512, preset quality (ratio 0.75, method todo), float32" in output
    assert re.search(r"transformer +2 +32x32 +6 +1024 -> 256", output)
    assert "0.100 s for an image instead of 1.000 s, 10.00 times as fast" in output
    assert main(["doctor", "--model", "dit", "--height", "2048"]) == 2
    assert "height 2048 is not the size of this DiTPipeline, 512x512 pixels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("build", "height", "width"),
    [(tiny.unet, 17, 26), (tiny.sdxl_unet, 9, 32), (lambda: tiny.unet(levels=4), 17, 26), (tiny.dit, 8, 32)],
)
def test_the_grids_are_those_that_a_call_has(build, height, width):
    model = build()
    estimated = {each.level: {each.grid.num_tokens} for each in estimate_merging(model, ToMeConfig(), height, width)}
    seen: dict[int, set[int]] = {}
    for block in find_blocks(model):
        block.block.register_forward_pre_hook(
            lambda _, inputs, level=block.level: seen.setdefault(level, set()).add(inputs[0].shape[1])
        )
    run = tiny.run_dit if build is tiny.dit else tiny.run_unet
    run(model, height=height, width=width)
    assert estimated == seen


def ddpm_pipeline(*, attention: bool) -> ppdiffusers.DDPMPipeline:
    down, up = ("AttnDownBlock2D", "AttnUpBlock2D") if attention else ("DownBlock2D", "UpBlock2D")
    unet = tiny.build(
        ppdiffusers.UNet2DModel, sample_size=16, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4,
        add_attention=attention, attention_head_dim=4, down_block_types=("DownBlock2D", down),
        up_block_types=(up, "UpBlock2D"),
    )  # fmt: skip
    return ppdiffusers.DDPMPipeline(unet, ppdiffusers.DDPMScheduler())


def test_timing_leaves_a_pipeline_as_it_was():
    assert find_latent_size(tiny.pipeline(), 64, None) == ((32, 16), 2)
    pipe = ddpm_pipeline(attention=True)
    before, random = tiny.snapshot(pipe.unet), tiny.random_states()
    assert min(time_denoiser(pipe, "unet", ToMeConfig(0.5), 16, 16)) > 0
    assert tiny.snapshot(pipe.unet) == before
    assert tiny.random_states() == random
    merging: list[BlockCall] = []
    WATCHERS.append(merging.append)
    time_denoiser(pipe, "unet", ToMeConfig((0.0, 0.5), start=0.3), 16, 16)  # its first call is timed, and merges
    assert {block.reduction.num_left for block in merging} == {32}
    with pytest.raises(UserError, match="StableDiffusionPipeline cannot be called with a prompt alone"):
        time_denoiser(tiny.pipeline(), "unet", ToMeConfig(0.5), 32, 32)  # it has no tokenizer


def test_reasons_why_nothing_merges_at_a_level():
    def find_reason(config: ToMeConfig, height: int, width: int) -> str | None:
        return estimate_merging(tiny.unet(), config, height, width)[-1].reason

    assert find_reason(ToMeConfig(), 16, 16) == "none: max_downsample=None reaches the finest level"
    large = ToMeConfig(0.9, sx=8, sy=8, max_downsample=2)
    assert find_reason(large, 4, 16) == "16: too few for ratio 0.9 and this stride"
    assert find_reason(ToMeConfig(0.001, max_downsample=2), 16, 16) == "64: too few for ratio 0.001 and this stride"


def test_pipeline_without_blocks_is_explained(tmp_path, capsys):
    ddpm_pipeline(attention=False).save_pretrained(str(tmp_path))
    assert main(["doctor", "--model", str(tmp_path)]) == 0
    assert "DDPMPipeline has nothing to merge" in capsys.readouterr().out


WRITE_AGAIN = "; write it again with: PYTHONPATH=tests python -m zoo.coverage"


@pytest.mark.skipif(not paddle.__version__.startswith("3"), reason="other pipelines import with Paddle 2.6")
def test_coverage_file_is_what_the_models_show():
    """A pipeline or model class that a new ppdiffusers adds fails here, by name."""
    found = {row.name: row for row in coverage()}
    assert not [row for row in found.values() if "unknown" in row.where]
    expected = {row.name: row for row in shipped.read_coverage() if not row.since or row.name in found}
    wrong = {
        name for name in found.keys() | expected.keys()
        if name not in found or name not in expected
        or (found[name].merges, found[name].where) != (expected[name].merges, expected[name].where)
    }  # fmt: skip
    assert not wrong, f"{shipped.FILE} differs in {sorted(wrong)}{WRITE_AGAIN}"
    if ppdiffusers.__version__ == TESTED[-1]:
        assert found.keys() >= {row.name for row in shipped.read_coverage() if row.since != NEWEST}


def test_page_is_the_coverage_file():
    assert PAGE.read_text(encoding="utf-8") == format_page(), f"{PAGE} differs{WRITE_AGAIN}"
