"""What users do to a Stable Diffusion pipeline, before or after ``apply_tome``, goes on working with merging on.

Attention processors and what is loaded into a UNet alone are in ``tests/patching/test_processors.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from ppdiffusers import StableDiffusionPipeline
from ppdiffusers.models.attention_processor import Attention

import tiny
from pipelines.whole import text_parts
from zoo.specimen import normal, untouched_random_state

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
    with untouched_random_state():
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
    """One thing a user does to a pipeline.

    Attributes:
        use: does it; a folder for its files comes with it.
        undo: takes it back, where ppdiffusers can.
        changes: whether it changes the image, or only how it is computed.
    """

    use: Callable[[Any, Path], Any]
    undo: Callable[[Any], Any] | None = None
    changes: bool = True


SETTINGS = {
    "attention-slicing": Setting(
        lambda pipe, _: pipe.enable_attention_slicing(1), lambda pipe: pipe.disable_attention_slicing(), False
    ),
    "vae-slicing": Setting(lambda pipe, _: pipe.enable_vae_slicing(), lambda pipe: pipe.disable_vae_slicing(), False),
    "vae-tiling": Setting(lambda pipe, _: pipe.enable_vae_tiling(), lambda pipe: pipe.disable_vae_tiling()),
    "lora": Setting(load_lora),
    "textual-inversion": Setting(load_textual_inversion),
    "to-cpu": Setting(lambda pipe, _: pipe.to("cpu"), changes=False),
}


# What ppdiffusers 0.29 itself cannot do, with how it says so; FreeU fails in fftshift, on 2.6 otherwise than on 3.3.
BROKEN = {
    "freeu": (
        Setting(lambda pipe, _: pipe.enable_freeu(0.9, 0.2, 1.5, 1.6), lambda pipe: pipe.disable_freeu()),
        r"equal to shifts.size\(\)|end should be greater than start",
    ),
}
# And what it could not until 0.29.1.
BROKEN_BEFORE = {
    "lora-fused": (Setting(fuse_lora), r"deprecation tuple \('fuse_text_encoder_lora', '0.25'"),
    "lora-unloaded": (
        Setting(load_lora, lambda pipe: pipe.unload_lora_weights()),
        r"deprecation tuple \('_remove_text_encoder_monkey_patch_classmethod', '0.25'",
    ),
}
if ppdiffusers.__version__ <= "0.29.0":
    BROKEN |= BROKEN_BEFORE
else:
    SETTINGS |= {name: setting for name, (setting, _) in BROKEN_BEFORE.items()}


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


@pytest.mark.parametrize("merging", [False, True], ids=["plain", "merging"])
@pytest.mark.parametrize(("setting", "error"), BROKEN.values(), ids=BROKEN)
def test_what_ppdiffusers_cannot_do_fails_as_without_tome(
    setting: Setting, error: str, merging: bool, tmp_path: Path
) -> None:
    """Its own error stays the one that is seen. Once it is mended this fails, and the setting belongs above."""
    pipe = pipeline()
    if merging:
        pipe.apply_tome(0.5)
    with pytest.raises(ValueError, match=error):
        use_and_undo(pipe, setting, tmp_path)


def use_and_undo(pipe: Any, setting: Setting, folder: Path) -> None:
    setting.use(pipe, folder)
    run(pipe)
    if setting.undo is not None:
        setting.undo(pipe)


def test_callbacks_see_every_step() -> None:
    pipe = pipeline().apply_tome(0.5)
    expected = run(pipe, output_type="latent")
    seen: list[tuple[int, np.ndarray]] = []

    def note_latents(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        seen.append((step, values["latents"].numpy()))
        return values

    drawn = run(pipe, output_type="latent", callback_on_step_end=note_latents)
    assert np.array_equal(drawn, expected)
    assert [step for step, _ in seen] == [0, 1]
    assert np.array_equal(seen[-1][1], expected)

    old: list[np.ndarray] = []
    drawn = run(pipe, output_type="latent", callback_steps=1, callback=lambda *given: old.append(given[2].numpy()))
    assert np.array_equal(drawn, expected)
    assert [np.array_equal(mine, theirs[1]) for mine, theirs in zip(old, seen, strict=True)] == [True, True]


def test_a_callback_may_remove_tome_and_change_latents() -> None:
    """The last step then runs unmerged, on what the callback gave: the same as the unmerged pipeline from there."""
    pipe, other = pipeline(), pipeline()
    given: list[paddle.Tensor] = []

    def remove(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if step == 0:
            pipe.remove_tome()
            given.append(0.9 * tensors["latents"])
            return {"latents": given[0]}
        return tensors

    def replace(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        return {"latents": given[0]} if step == 0 else tensors

    drawn = run(pipe.apply_tome(0.5), output_type="latent", callback_on_step_end=remove)
    assert pipe.tome is None
    assert np.array_equal(run(other, output_type="latent", callback_on_step_end=replace), drawn)
    merged = run(other.apply_tome(0.5), output_type="latent", callback_on_step_end=replace)
    assert np.abs(merged - drawn).max() > 1e-4


def test_weighted_embeddings_are_taken_as_they_are() -> None:
    pipe = pipeline().apply_tome(0.5)
    expected = run(pipe)
    with paddle.no_grad():
        given = pipe.encode_prompt("a red <sign> circle", 2, True, "a blue star")
    embeds = dict(prompt_embeds=given[0], negative_prompt_embeds=given[1])
    assert np.abs(run(pipe, **embeds) - expected).max() <= 1e-6
    weights = paddle.ones([1, given[0].shape[1], 1])
    weights[:, 2] = 3.0
    weighted = run(pipe, **{**embeds, "prompt_embeds": given[0] * weights})
    assert np.abs(weighted - expected).max() > 1e-4
    other = pipeline()
    plain = run(other, **{**embeds, "prompt_embeds": given[0] * weights})
    assert np.array_equal(run(pipe.remove_tome(), **{**embeds, "prompt_embeds": given[0] * weights}), plain)
