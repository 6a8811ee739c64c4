"""A user's function around the forward of a denoiser with ToMe, where ToMe does not see its own override."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tiny
from ppdiffusers_tome import apply_tome, remove_tome, use_tome

ATTENTION = "down_blocks.0.attentions.0.transformer_blocks.0.attn1"


@pytest.fixture
def unet() -> Any:
    unet = apply_tome(tiny.unet(levels=1), 0.5)
    forward = unet.forward
    unet.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    return unet


def merged(ratio: float) -> np.ndarray:
    return tiny.run_unet(apply_tome(tiny.unet(levels=1), ratio))


def test_new_settings_are_not_said_to_have_no_effect(unet: Any) -> None:
    apply_tome(unet, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(tiny.run_unet(unet), merged(0.3))
    assert np.array_equal(tiny.run_unet(remove_tome(unet)), tiny.run_unet(tiny.unet(levels=1)))


def test_what_was_applied_before_is_applied_again(unet: Any) -> None:
    before = unet.tome
    with use_tome(unet, 0.3):
        assert np.array_equal(tiny.run_unet(unet), merged(0.3))
    assert unet.tome == before
    assert np.array_equal(tiny.run_unet(unet), merged(0.5))


@pytest.mark.parametrize("path", ["", "down_blocks.0.attentions.0", ATTENTION])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_function_in_place_of_forward_neither_hides_nor_removes_it(path: str, when: str) -> None:
    """Of any layer, also one that calls the method of the layer's class."""
    unet = tiny.unet(levels=1)
    layer, calls = dict(unet.named_sublayers(include_self=True))[path], []

    if when == "after":
        apply_tome(unet, 0.5)
    own = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return own(*args, **kwargs) if when == "after" else type(layer).forward(layer, *args, **kwargs)

    layer.forward = forward
    if when == "before":
        apply_tome(unet, 0.5)
    assert np.array_equal(tiny.run_unet(unet), merged(0.5))
    assert unet.tome.blocks == {"": 4}
    apply_tome(unet, 0.3)
    assert np.array_equal(tiny.run_unet(unet), merged(0.3))
    assert np.array_equal(tiny.run_unet(remove_tome(unet)), tiny.run_unet(tiny.unet(levels=1)))
    assert layer.forward is forward
    assert len(calls) == 3


def test_what_is_put_on_the_class_of_a_model_replaces_its_own_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """As TeaCache does it: ``pipe.transformer.__class__.forward = ...``."""
    unet, calls = apply_tome(tiny.unet(levels=1), 0.5), []
    own = type(unet).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return own(self, *args, **kwargs)

    monkeypatch.setattr(type(unet), "forward", forward)
    assert np.array_equal(tiny.run_unet(unet), merged(0.5))
    assert len(calls) == 2
    monkeypatch.undo()
    assert np.array_equal(tiny.run_unet(unet), merged(0.5))
    assert type(unet).forward is type(remove_tome(unet)).forward is own
