"""Classes of the user's own with ToMe: given later, copied in their own way, or with another ``forward``."""

from __future__ import annotations

import copy
import functools
import threading
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.override import list_overrides
from ppdiffusers_tome.tools.recorder import record_merging

UNet: Any = ppdiffusers.UNet2DConditionModel


def build(cls: Any) -> Any:
    config = {name: value for name, value in tiny.unet(levels=1).config.items() if not name.startswith("_")}
    return tiny.build(cls, **config)


@pytest.fixture
def merged() -> np.ndarray:
    return tiny.run_unet(apply_tome(tiny.unet(levels=1), 0.5))


def test_a_class_that_drops_what_cannot_be_copied(merged: np.ndarray) -> None:
    class Locked(UNet):
        def __getstate__(self) -> dict[str, Any]:
            return {name: value for name, value in vars(self).items() if name != "lock"}

    unet = apply_tome(build(Locked), 0.5)
    vars(unet)["lock"] = threading.Lock()
    again = copy.deepcopy(unet)
    assert "lock" not in vars(again)
    assert np.array_equal(tiny.run_unet(again), merged)


def test_a_class_that_is_given_later_is_counted() -> None:
    unet = apply_tome(tiny.unet(levels=1), 0.5)
    block: Any = next(iter(find_blocks(unet))).block
    block.__class__ = type("Timed", (type(block),), {})
    with record_merging(unet) as records:
        tiny.run_unet(unet)
    assert len({record.block.path for record in records}) == unet.tome.num_blocks == len(list(find_blocks(unet)))
    remove_tome(unet)
    assert list_overrides(block) == []


@pytest.mark.parametrize("settings", [dict(ratio=0.5, cache=0.3), dict(ratio=0, cache=0.3)])
def test_a_forward_that_hands_on_all_its_arguments(settings: dict[str, Any]) -> None:
    class Own(UNet):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    images, reports = [], []
    for cls in (UNet, Own):
        pipe = apply_tome(tiny.pipeline(unet=build(cls)), **settings)
        images.append(tiny.run_pipeline(pipe, steps=12))
        reports.append(pipe.tome.entries[0].last_image)
    assert np.array_equal(*images)
    assert reports[0] == reports[1]
    assert reports[0].num_skipped > 0


def test_a_forward_that_is_made_anew_at_each_access() -> None:
    class Own(UNet):
        def _run(self, flag: bool, sample: Any, timestep: Any, encoder_hidden_states: Any, **kwargs: Any) -> Any:
            assert flag
            return UNet.forward(self, sample, timestep, encoder_hidden_states, **kwargs)

        forward = functools.partialmethod(_run, True)

    pipe = apply_tome(tiny.pipeline(unet=build(Own)), 0.5, cache=0.3)
    tiny.run_pipeline(pipe, steps=12)
    assert pipe.tome.entries[0].last_image.num_skipped > 0


def test_a_method_that_was_found_before_it_was_removed_runs_the_plain_model() -> None:
    unet, plain = tiny.unet(levels=1), tiny.run_unet(tiny.unet(levels=1))
    forward = apply_tome(unet, 0.5).forward
    remove_tome(unet)
    with paddle.no_grad():
        assert np.array_equal(forward(tiny.latent(), 500, tiny.text()).sample.numpy(), plain)


