"""A user's function around the forward of a denoiser with ToMe, where ToMe does not see its own override."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tiny
from ppdiffusers_tome import apply_tome, remove_tome


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
