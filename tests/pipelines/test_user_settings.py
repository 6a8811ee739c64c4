"""What users do to a Stable Diffusion pipeline, before or after ``apply_tome``, goes on working with merging on.

Attention processors and what is loaded into a UNet alone are in ``tests/patching/test_processors.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ppdiffusers
import pytest
from ppdiffusers import StableDiffusionPipeline
from ppdiffusers.models.attention_processor import Attention

import tiny
from pipelines.whole import text_parts
from zoo.specimen import keep_random_state, normal

SIDE = 48  # larger than one tile of the VAE


def pipeline() -> Any:
    return tiny.pipeline(**text_parts())


def run(pipe: Any, **given: Any) -> np.ndarray:
    """Two images from the same noise; without other words, as arrays between 0 and 1."""
    call: dict[str, Any] = dict(
        negative_prompt="a blue star", num_inference_steps=2, height=SIDE, width=SIDE, output_type="np",
        latents=tiny.latent(2, SIDE // 2, SIDE // 2),
    )  # fmt: skip
    if "prompt_embeds" in given:
        del call["negative_prompt"]
    else:
        call["prompt"] = "a red <sign> circle"
        call["num_images_per_prompt"] = 2
    with keep_random_state():
        return tiny.to_numpy(pipe(**{**call, **given}).images)


def write_lora(folder: Path) -> None:
    """A LoRA of rank two for every attention of the UNet, as ppdiffusers writes it after training."""
    weights = {}
    for path, attention in tiny.unet().named_sublayers():
        if isinstance(attention, Attention):
            for name in ("to_q", "to_k", "to_v", "to_out.0"):
                linear = attention.to_out[0] if name == "to_out.0" else getattr(attention, name)
                number = len(weights)
                weights[f"{path}.{name}.lora.down.weight"] = normal(linear.in_features, 2, seed=number)
                weights[f"{path}.{name}.lora.up.weight"] = 0.3 * normal(2, linear.out_features, seed=number + 1)
    StableDiffusionPipeline.save_lora_weights(str(folder), unet_lora_layers=weights, to_diffusers=False)


def load_lora(pipe: Any, folder: Path) -> None:
    if not any(folder.iterdir()):
        write_lora(folder)
    pipe.load_lora_weights(str(folder), from_diffusers=False)


def fuse_lora(pipe: Any, folder: Path) -> None:
    load_lora(pipe, folder)
    pipe.fuse_lora()


def load_textual_inversion(pipe: Any, folder: Path) -> None:
    """The prompt's ``<sign>`` becomes one token with an embedding of its own."""
    pipe.load_textual_inversion({"<sign>": normal(tiny.CROSS_DIM, seed=9)}, from_diffusers=False)


@dataclass(frozen=True)
class Setting:
    """One thing a user does to a pipeline; ``changes`` tells whether the image changes, or only how it is computed."""

    use: Callable[[Any, Path], Any]
    undo: Callable[[Any], Any] | None = None
    changes: bool = True


SETTINGS = {
    "attention-slicing": Setting(
        lambda pipe, _: pipe.enable_attention_slicing(1), lambda pipe: pipe.disable_attention_slicing(), False
    ),
    "vae-tiling": Setting(lambda pipe, _: pipe.enable_vae_tiling(), lambda pipe: pipe.disable_vae_tiling()),
    "lora": Setting(load_lora),
    "textual-inversion": Setting(load_textual_inversion),
    "to-cpu": Setting(lambda pipe, _: pipe.to("cpu"), changes=False),
}


if ppdiffusers.__version__ > "0.29.0":  # before, ppdiffusers itself raises errors of outdated names
    SETTINGS["lora-fused"] = Setting(fuse_lora)
    SETTINGS["lora-unloaded"] = Setting(load_lora, lambda pipe: pipe.unload_lora_weights())


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_setting_works_before_and_after(setting: Setting, tmp_path: Path) -> None:
    before, after = pipeline(), pipeline()
    setting.use(before, tmp_path)
    plain = run(before)
    merged = run(before.apply_tome(0.5))
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-4

    without = run(after.apply_tome(0.5))
    setting.use(after, tmp_path)
    assert np.array_equal(run(after), merged)
    difference = np.abs(merged - without).max()
    assert difference > 1e-4 if setting.changes else difference <= 1e-6

    if setting.undo is not None:
        setting.undo(after)
        assert np.abs(run(after) - without).max() <= 1e-6
        setting.use(after, tmp_path)
    assert np.array_equal(run(before.remove_tome()), plain)
    assert np.array_equal(run(after.remove_tome()), plain)


def test_callbacks_see_every_step() -> None:
    pipe = pipeline().apply_tome(0.5)
    expected = run(pipe, output_type="latent")
    seen: list[tuple[int, np.ndarray]] = []
    old: list[np.ndarray] = []

    def note_latents(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        seen.append((step, values["latents"].numpy()))
        return values

    for given in (
        dict(callback_on_step_end=note_latents),
        dict(callback_steps=1, callback=lambda step, timestep, latents: old.append(latents.numpy())),
    ):
        assert np.array_equal(run(pipe, output_type="latent", **given), expected)
    assert [step for step, _ in seen] == [0, 1]
    assert np.array_equal(seen[-1][1], expected)
    assert [np.array_equal(mine, theirs[1]) for mine, theirs in zip(old, seen, strict=True)] == [True, True]
