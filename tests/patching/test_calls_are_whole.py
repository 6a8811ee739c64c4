"""A call of a denoiser has one set of settings, from its first layer to its last."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.accelerate import Accelerator

import tiny
from patching.contract import needs_recompute
from patching.test_changes_meanwhile import generate_while
from ppdiffusers_tome import ToMeValueError, apply_tome, remove_tome

CHANGES = [None, dict(ratio=0.5), dict(ratio=0.75, method="keys"), dict(ratio=0.5, cache=0.5)]


def change(model: Any, settings: dict[str, Any] | None) -> None:
    if settings is None:
        remove_tome(model)
    else:
        apply_tome(model, **settings)


@pytest.mark.parametrize("settings", CHANGES[1:], ids=str)
@pytest.mark.parametrize(
    "path", ["time_proj", "down_blocks.0.attentions.0", "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"]
)
def test_a_call_that_began_unmerged_ends_unmerged(path: str, settings: dict[str, Any]) -> None:
    unet = tiny.unet(levels=1)
    plain = tiny.run_unet(unet)
    assert np.array_equal(generate_while(unet, path, lambda: apply_tome(unet, **settings)), plain)
    assert np.array_equal(tiny.run_unet(unet), tiny.run_unet(apply_tome(tiny.unet(levels=1), **settings)))


def test_what_a_part_computes_by_itself_is_unmerged() -> None:
    """ToMe is the denoiser's."""
    unet = tiny.unet(levels=1)
    part = unet.down_blocks[0].attentions[0]

    @paddle.no_grad()
    def run() -> np.ndarray:
        return part(tiny.array((2, 8, 16, 16)), encoder_hidden_states=tiny.text()).sample.numpy()

    plain = run()
    apply_tome(unet, 0.5)
    assert np.array_equal(run(), plain)


@pytest.mark.parametrize(
    "settings", [dict(ratio=0.5), dict(ratio=0.5, end=0.6), dict(ratio=0.75, method="keys")], ids=str
)
def test_ppdiffusers_accelerator_calls_the_merging_forward(settings: dict[str, Any]) -> None:
    """With mixed precision it calls the function of ``forward``, as of a method, where there is one."""
    unet = apply_tome(tiny.unet(levels=1), **settings)
    expected, plain = tiny.run_unet(unet), tiny.run_unet(tiny.unet(levels=1))
    prepared = Accelerator(mixed_precision="bf16").prepare_model(unet)
    assert np.array_equal(tiny.run_unet(prepared), expected)
    assert np.array_equal(tiny.run_unet(remove_tome(prepared)), plain)


@needs_recompute
@pytest.mark.parametrize("new", [None, dict(ratio=0.3)], ids=str)
def test_settings_that_change_before_the_backward_pass_end_it_in_words(new: dict[str, Any] | None) -> None:
    """They would be those of the second run alone, and the gradients wrong."""
    unet = apply_tome(tiny.unet(levels=1), 0.5)
    unet.train()
    unet.enable_gradient_checkpointing()
    output = unet(tiny.latent(), 500, tiny.text()).sample
    change(unet, new)
    # Paddle gives an error in a backward pass its own class, around the message.
    with pytest.raises((ToMeValueError, OSError), match="ToMe was removed or changed between a call with gradient"):
        (output**2).mean().backward()
    fresh = apply_tome(tiny.unet(levels=1), 0.5)
    change(fresh, new)
    assert np.array_equal(tiny.run_unet(unet), tiny.run_unet(fresh))
