"""Classes of the user's own with ToMe: given later, copied in their own way, or with another ``forward``."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import apply_tome, remove_tome

UNet: Any = ppdiffusers.UNet2DConditionModel


def build(cls: Any) -> Any:
    config = {name: value for name, value in tiny.unet(levels=1).config.items() if not name.startswith("_")}
    return tiny.build(cls, **config)


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


def test_a_method_that_was_found_before_it_was_removed_runs_the_plain_model() -> None:
    unet, plain = tiny.unet(levels=1), tiny.run_unet(tiny.unet(levels=1))
    forward = apply_tome(unet, 0.5).forward
    remove_tome(unet)
    with paddle.no_grad():
        assert np.array_equal(forward(tiny.latent(), 500, tiny.text()).sample.numpy(), plain)
