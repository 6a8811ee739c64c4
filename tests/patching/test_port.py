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


def test_remove_leaves_nothing_of_the_port() -> None:
    """It marks the text encoder too."""
    pipe = tiny.pipeline()
    layers = [pipe.unet, pipe.vae, pipe.text_encoder]
    plain, before = tiny.run_unet(pipe.unet), [tiny.snapshot(layer) for layer in layers]
    for remove in (pipe.remove_tome, lambda: pipe.apply_tome(0.5).remove_tome()):
        apply_port(pipe, ratio=0.6, max_downsample=2)
        assert "_tome_info" in vars(pipe.text_encoder)
        assert np.abs(tiny.run_unet(pipe.unet) - plain).max() > 1e-3
        assert remove() is pipe
        assert [tiny.snapshot(layer) for layer in layers] == before
    assert np.array_equal(tiny.run_unet(pipe.unet), plain)


def test_removing_it_from_a_copy_leaves_the_first_one_as_it_is() -> None:
    unet = apply_port(tiny.unet(), ratio=0.6, max_downsample=2, use_rand=False)
    ported, before = tiny.run_unet(unet), tiny.snapshot(unet)
    other = remove_tome(copy.deepcopy(unet))
    assert tiny.snapshot(unet) == before
    assert np.array_equal(tiny.run_unet(other), tiny.run_unet(tiny.unet()))
    assert np.array_equal(tiny.run_unet(unet), ported)
