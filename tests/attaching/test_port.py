"""Models that ppdiffusers' own port of tomesd patched before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ppdiffusers_tome
import tiny
from ppdiffusers_tome import apply_tome, remove_tome


@pytest.fixture
def port() -> Iterator[Any]:
    """The port's own ``apply_tome``, which ours stands in for."""
    ppdiffusers_tome.uninstall()
    try:

        def apply(model_or_pipe: Any, **settings: Any) -> Any:
            ppdiffusers_tome.uninstall()
            try:
                assert type(model_or_pipe).apply_tome.__module__ == "ppdiffusers.patches.tomesd_patch_utils"
                return model_or_pipe.apply_tome(**settings)
            finally:
                ppdiffusers_tome.install()

        yield apply
    finally:
        ppdiffusers_tome.install()


def test_ours_after_the_port_equals_ours_alone(port: Any) -> None:
    expected = tiny.run_unet(apply_tome(tiny.unet(), 0.4, merge_mlp=True))
    unet = port(tiny.unet(), ratio=0.6, max_downsample=2)
    tiny.run_unet(unet)
    assert np.array_equal(tiny.run_unet(apply_tome(unet, 0.4, merge_mlp=True)), expected)


def test_remove_leaves_nothing_of_the_port(port: Any) -> None:
    unet = tiny.unet()
    plain, before = tiny.run_unet(unet), tiny.snapshot(unet)
    port(unet, ratio=0.6, max_downsample=2)
    assert tiny.snapshot(unet) != before
    assert np.abs(tiny.run_unet(unet) - plain).max() > 1e-3
    assert remove_tome(unet) is unet
    assert tiny.snapshot(unet) == before
    assert np.array_equal(tiny.run_unet(unet), plain)
    port(unet, ratio=0.6, max_downsample=2)
    apply_tome(unet, 0.5)
    assert tiny.snapshot(remove_tome(unet)) == before


def test_remove_from_a_pipeline_leaves_nothing_of_the_port(port: Any) -> None:
    """The port marks the text encoder too."""
    pipe = tiny.pipeline()
    layers = [pipe.unet, pipe.vae, pipe.text_encoder]
    before = [tiny.snapshot(layer) for layer in layers]
    port(pipe, ratio=0.5)
    assert "_tome_info" in vars(pipe.text_encoder)
    pipe.apply_tome(0.5).remove_tome()
    assert [tiny.snapshot(layer) for layer in layers] == before


def test_ours_equals_the_port_without_randomness(port: Any) -> None:
    settings = dict(ratio=0.5, max_downsample=2, use_rand=False, merge_crossattn=True, merge_mlp=True)
    expected = tiny.run_unet(port(tiny.unet(), **settings))
    assert np.abs(tiny.run_unet(apply_tome(tiny.unet(), **settings)) - expected).max() <= 1e-4
