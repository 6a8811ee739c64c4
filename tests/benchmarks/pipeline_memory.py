"""The memory that a whole image needs at its peak, unmerged and merged.

    PYTHONPATH=tests python -m benchmarks.pipeline_memory compute --output docs/measured/memory/computed.csv
    PYTHONPATH=tests python -m benchmarks.pipeline_memory measure --output docs/measured/memory/measured.csv

``compute`` traces denoisers and VAEs of the published shapes and runs nothing; FLUX needs a ppdiffusers that has it.
``measure`` runs an image of Stable Diffusion 1.5's shape with random weights on this machine, in a fresh process for
each variant, and computes the same.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import paddle
import ppdiffusers

from benchmarks.call_memory import read_mebibytes
from benchmarks.random_models import _SD3, RANDOM_UNETS, SD15_VAE, random_model
from benchmarks.traced_memory import build, compute_peaks, count_operators, make_data, read_tensor_bytes
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.overrides import block
from ppdiffusers_tome.tools.measure.meter import Meter

SIZES, PRESET = (512, 1024), "balanced"
VARIANTS = {"unmerged": None, "ratio 0.5": ToMeConfig(0.5), PRESET: ToMeConfig.preset(PRESET)}
_STEPS = 1


def count_clip(channels: int, layers: int, projection: int = 0) -> int:
    """Count the weights of a CLIP text encoder."""
    layer = 4 * (channels**2 + channels) + 8 * channels**2 + 5 * channels + 4 * channels
    return (49408 + 77) * channels + layers * layer + 2 * channels + channels * projection


CLIP_L, CLIP_G = count_clip(768, 12), count_clip(1280, 32, 1280)
T5_XXL = 32128 * 4096 + 24 * (4 * 4096**2 + 3 * 4096 * 10240 + 2 * 4096) + 32 * 64 + 4096


@dataclass(frozen=True)
class Family:
    """A pipeline of a published shape.

    ``text`` counts the weights of its text encoders; ``rows`` are those of an image with guidance.
    """

    title: str
    model_class: str
    config: dict[str, Any]
    text: int
    inputs: Callable[[int, int], dict[str, Any]]
    rows: int = 2
    latent_channels: int = 4


def _unet_inputs(text_channels: int, rows: int, pixels: int) -> dict[str, Any]:
    inputs = dict(
        sample=make_data(rows, 4, pixels // 8, pixels // 8), timestep=make_data(1, dtype="int64"),
        encoder_hidden_states=make_data(rows, 77, text_channels),
    )  # fmt: skip
    if text_channels == 2048:
        inputs["added_cond_kwargs"] = {"text_embeds": make_data(rows, 1280), "time_ids": make_data(rows, 6)}
    return inputs


def _sd3_inputs(rows: int, pixels: int) -> dict[str, Any]:
    return dict(
        hidden_states=make_data(rows, 16, pixels // 8, pixels // 8), encoder_hidden_states=make_data(rows, 154, 4096),
        pooled_projections=make_data(rows, 2048), timestep=make_data(rows, dtype="int64"),
    )  # fmt: skip


def _flux_inputs(rows: int, pixels: int) -> dict[str, Any]:
    tokens = (pixels // 16) ** 2
    return dict(
        hidden_states=make_data(rows, tokens, 64), encoder_hidden_states=make_data(rows, 512, 4096),
        pooled_projections=make_data(rows, 768), timestep=make_data(rows), guidance=make_data(rows),
        img_ids=make_data(tokens, 3), txt_ids=make_data(512, 3),
    )  # fmt: skip


FAMILIES = {
    "sd15": Family(
        "Stable Diffusion 1.5", "UNet2DConditionModel", RANDOM_UNETS["sd15-random"], CLIP_L, partial(_unet_inputs, 768)
    ),
    "sdxl": Family(
        "SDXL", "UNet2DConditionModel", RANDOM_UNETS["sdxl-random"], CLIP_L + CLIP_G, partial(_unet_inputs, 2048)
    ),
    "sd3": Family(
        "SD3 medium", "SD3Transformer2DModel", _SD3 | {"pos_embed_max_size": max(SIZES) // 16},  # no weights
        count_clip(768, 12, 768) + CLIP_G + T5_XXL, _sd3_inputs,
        latent_channels=16,
    ),
    "flux": Family(
        "FLUX.1 dev", "FluxTransformer2DModel", dict(guidance_embeds=True), CLIP_L + T5_XXL, _flux_inputs, rows=1,
        latent_channels=16,
    ),
}  # fmt: skip


def compute(family: Family, pixels: int, config: ToMeConfig | None, **settings: Any) -> dict[str, Any]:
    """Compute the bytes of weights, decoding and a call."""
    weights = [family.text]

    def count(model: Any) -> Any:
        weights.append(sum(math.prod(parameter.shape) for parameter in model.parameters()))
        return model

    def call() -> int:
        model = count(build(getattr(ppdiffusers, family.model_class), **family.config))
        if config is not None:
            model.apply_tome(config)
        num_building, side, find_grid = count_operators(), pixels // 16, block.GridOverride._find_grid

        def find_any_grid(self: Any, inputs: Any) -> Any:
            """A program has no values of FLUX's ``img_ids``."""
            return Grid(side, side) if self.adapter.grid_from_values else find_grid(self, inputs)

        with mock.patch.object(block.GridOverride, "_find_grid", find_any_grid):
            model(**family.inputs(family.rows, pixels))
        return num_building

    def decode() -> int:
        vae = count(build(ppdiffusers.AutoencoderKL, **SD15_VAE, latent_channels=family.latent_channels))
        num_building = count_operators()
        vae.decode(make_data(1, family.latent_channels, pixels // 8, pixels // 8))
        return num_building

    (plain, fused), (decoding, _) = (compute_peaks(each, **settings) for each in (call, decode))
    return {
        "weights": sum(weights) * settings.get("itemsize", 4), "decoding": decoding, "a call, plain attention": plain,
        "a call, flash attention": fused,
    }  # fmt: skip


def compute_all(families: list[str]) -> Iterator[dict[str, Any]]:
    """Compute all families in half precision, as on a GPU."""
    for name in families:
        for pixels in SIZES:
            for variant in ("unmerged", PRESET):
                row = compute(FAMILIES[name], pixels, VARIANTS[variant], itemsize=2)
                for attention in ("plain", "flash"):
                    highest = max(row["decoding"], row[f"a call, {attention} attention"])
                    row[f"peak, {attention} attention"] = row["weights"] + highest
                yield {"model": FAMILIES[name].title, "size": f"{pixels}x{pixels}", "variant": variant, **row}


def make_pipeline(model: str = "sd15-random") -> Any:
    """Make a pipeline of Stable Diffusion 1.5's shape with random weights, without a tokenizer."""
    from ppdiffusers.transformers import CLIPTextConfig, CLIPTextModel

    unet, vae = random_model(model), ppdiffusers.AutoencoderKL(**SD15_VAE)
    vae.eval()
    shape = dict(
        vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    text = CLIPTextModel(CLIPTextConfig(**shape, projection_dim=768))
    pipe = ppdiffusers.StableDiffusionPipeline(
        vae, text, None, unet, ppdiffusers.DDIMScheduler(), None, None, requires_safety_checker=False
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def measure(variant: str, pixels: int) -> dict[str, int]:
    """Generate an image; return the peaks of Paddle's tensors and of the process."""
    pipe = make_pipeline()
    config, peaks = VARIANTS[variant], {"weights": read_tensor_bytes("current")}
    if config is not None:
        pipe.apply_tome(config)

    def add_meter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            meter = Meter()
            result = function(*args, **kwargs)
            peaks[name] = max(peaks.get(name, 0), meter.peak_bytes() or 0)
            return result

        return run

    pipe.unet.forward = add_meter("calls", pipe.unet.forward)
    pipe.vae.decode = add_meter("decoding", pipe.vae.decode)
    embeddings = paddle.randn([1, 77, 768])
    ctypes.CDLL(None).malloc_trim(0)  # freed memory would count again
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    pipe(
        prompt_embeds=embeddings, negative_prompt_embeds=embeddings, height=pixels, width=pixels,
        num_inference_steps=_STEPS, output_type="np",
    )  # fmt: skip
    return {**peaks, "process": round(read_mebibytes("VmHWM") * 2**20)}


def measure_all(variants: list[str], pixels: int) -> Iterator[dict[str, Any]]:
    """Measure variants of an image in float32, and compute the same."""
    for variant in variants:
        computed = compute(FAMILIES["sd15"], pixels, VARIANTS[variant], unfolds=True)
        weights, calls = computed["weights"], computed["a call, plain attention"]
        expected = {"weights": weights, "calls": weights + calls, "decoding": weights + computed["decoding"]}
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            measured = process.submit(measure, variant, pixels).result()
        for part, size in measured.items():
            guess = expected.get(part, max(expected.values()))
            yield {"size": f"{pixels}x{pixels}", "variant": variant, "part": part, "computed": guess, "measured": size,
                   "error": f"{guess / size - 1:+.1%}"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compute", "measure"))
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS, help="to measure")
    parser.add_argument("--size", type=int, default=SIZES[0], help="to measure, in pixels")
    parser.add_argument("--output", type=Path, required=True, metavar="CSV", help="rows are appended; sizes in MiB")
    args = parser.parse_args()
    for row in compute_all(args.families) if args.what == "compute" else measure_all(args.variants, args.size):
        rounded = {name: round(value / 2**20) if isinstance(value, int) else value for name, value in row.items()}
        is_new = not args.output.exists()
        with args.output.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rounded, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(rounded)
        print(*rounded.values(), sep=", ", flush=True)


if __name__ == "__main__":
    main()
