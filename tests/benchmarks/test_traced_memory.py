"""Memory that is computed from shapes: what a traced program holds is what a call holds."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import paddle
import pytest

from benchmarks.pipeline_memory import CLIP_G, CLIP_L, FAMILIES, PRESET, T5_XXL, compute
from benchmarks.traced_memory import build, compute_peaks, count_operators, make_data, read_tensor_bytes
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.generation.loading import load_pipeline
from ppdiffusers_tome.tools.generation.models import find_model
from ppdiffusers_tome.tools.measure.meter import Meter

ROOT = Path(__file__).parents[2]
SIDE = 32
CONFIGS = {"unmerged": None, "tome": ToMeConfig(0.5), "fewer keys": ToMeConfig.preset("balanced")}


@pytest.fixture(scope="module")
def pipe() -> Any:
    return load_pipeline(find_model("photographs"), dtype="float32")


def trace_unet(pipe: Any, config: ToMeConfig | None) -> int:
    unet = build(type(pipe.unet).from_config, config=pipe.unet.config)
    num_building = count_operators()
    if config is not None:
        unet.apply_tome(config)
    width = pipe.unet.config.cross_attention_dim
    unet(make_data(2, 4, SIDE, SIDE), make_data(1, dtype="int64"), make_data(2, 77, width))
    return num_building


@pytest.mark.parametrize("name", CONFIGS)
def test_program_holds_little_less_than_a_call(pipe: Any, name: str) -> None:
    """Python holds some of the tokens for longer, which is much in a small model."""
    computed, _ = compute_peaks(partial(trace_unet, pipe, CONFIGS[name]), unfolds=True)
    pipe.unet.set_default_attn_processor()
    if CONFIGS[name] is not None:
        pipe.unet.apply_tome(CONFIGS[name])
    width = pipe.unet.config.cross_attention_dim
    inputs = paddle.randn([2, 4, SIDE, SIDE]), paddle.to_tensor([500]), paddle.randn([2, 77, width])
    before, meter = read_tensor_bytes("current"), Meter()
    with paddle.no_grad():
        pipe.unet(*inputs)
    pipe.unet.remove_tome()
    assert computed <= (meter.peak_bytes() or 0) - before <= 1.35 * computed


@pytest.mark.parametrize(("name", "ratio"), [("none", 0.0), ("ours 0.5", 0.5), ("ours 0.7", 0.7)])
def test_stable_diffusion_holds_what_was_measured(name: str, ratio: float) -> None:
    """The measured calls had one row of 1024x1024 in float32."""
    with (ROOT / "docs/measured/performance/memory-1024-xeon.csv").open(encoding="utf-8") as file:
        measured = {row["variant"]: row["peak memory"] for row in csv.DictReader(file)}[name]
    family = replace(FAMILIES["sd15"], rows=1, text=0)
    found = compute(family, 1024, ToMeConfig(ratio) if ratio else None)
    vae = 83_653_863
    computed = found["a call, plain attention"] + found["weights"] - 4 * vae
    assert 0.97 <= computed / 2**20 / float(measured.removesuffix(" MiB").replace(",", "")) <= 1


def test_weights_of_text_encoders_are_the_published_ones() -> None:
    assert (CLIP_L, CLIP_G, T5_XXL) == (123_060_480, 694_659_840, 4_762_310_656)


def test_pages_have_the_computed_peaks() -> None:
    """Otherwise run ``benchmarks.pipeline_memory compute``, and write its numbers into both pages."""
    with (ROOT / "docs/measured/memory/computed.csv").open(encoding="utf-8") as file:
        rows = {(row["model"], row["size"], row["variant"]): row for row in csv.DictReader(file)}
    for title in (family.title for family in FAMILIES.values()):
        cells = [f"{int(rows[title, '512x512', 'unmerged']['weights']) / 1024:.1f}"]
        for size in ("512x512", "1024x1024"):
            for attention in ("plain", "flash"):
                peaks = [int(rows[title, size, name][f"peak, {attention} attention"]) for name in ("unmerged", PRESET)]
                cells.append(" → ".join(dict.fromkeys(f"{peak / 1024:.1f}" for peak in peaks)))
        line = f"| {title}{'*' * title.startswith('FLUX')} | {' | '.join(cells)} |"
        for language in ("en", "zh"):
            assert line in (ROOT / "docs" / language / "guides" / "gpu.md").read_text(encoding="utf-8").splitlines()
