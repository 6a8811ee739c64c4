"""Models that ppdiffusers' own port of tomesd patched before."""

from __future__ import annotations

import copy

import numpy as np

import tiny
from patching.port import apply_port
from ppdiffusers_tome import apply_tome, remove_tome


def test_ours_after_the_port_equals_ours_alone() -> None:
    expected = tiny.run_unet(apply_tome(tiny.unet(), 0.4, merge_mlp=True))
    unet = apply_port(tiny.unet(), ratio=0.6, max_downsample=2)
    tiny.run_unet(unet)
    assert np.array_equal(tiny.run_unet(apply_tome(unet, 0.4, merge_mlp=True)), expected)


def test_remove_leaves_nothing_of_the_apply_port() -> None:
    unet = tiny.unet()
    plain, before = tiny.run_unet(unet), tiny.snapshot(unet)
    apply_port(unet, ratio=0.6, max_downsample=2)
    assert tiny.snapshot(unet) != before
    assert np.abs(tiny.run_unet(unet) - plain).max() > 1e-3
    assert remove_tome(unet) is unet
    assert tiny.snapshot(unet) == before
    assert np.array_equal(tiny.run_unet(unet), plain)
    apply_port(unet, ratio=0.6, max_downsample=2)
    apply_tome(unet, 0.5)
    assert tiny.snapshot(remove_tome(unet)) == before


def test_removing_it_from_a_copy_leaves_the_first_one_as_it_is() -> None:
    unet = apply_port(tiny.unet(), ratio=0.6, max_downsample=2, use_rand=False)
    ported, before = tiny.run_unet(unet), tiny.snapshot(unet)
    other = remove_tome(copy.deepcopy(unet))
    assert tiny.snapshot(unet) == before
    assert np.array_equal(tiny.run_unet(other), tiny.run_unet(tiny.unet()))
    assert np.array_equal(tiny.run_unet(unet), ported)


def test_remove_from_a_pipeline_leaves_nothing_of_the_apply_port() -> None:
    """The port marks the text encoder too."""
    pipe = tiny.pipeline()
    layers = [pipe.unet, pipe.vae, pipe.text_encoder]
    before = [tiny.snapshot(layer) for layer in layers]
    apply_port(pipe, ratio=0.5)
    assert "_tome_info" in vars(pipe.text_encoder)
    pipe.apply_tome(0.5).remove_tome()
    assert [tiny.snapshot(layer) for layer in layers] == before


def test_ours_equals_the_port_without_randomness() -> None:
    settings = dict(ratio=0.5, max_downsample=2, use_rand=False, merge_crossattn=True, merge_mlp=True)
    expected = tiny.run_unet(apply_port(tiny.unet(), **settings))
    assert np.abs(tiny.run_unet(apply_tome(tiny.unet(), **settings)) - expected).max() <= 1e-4
