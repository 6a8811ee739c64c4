"""What ppdiffusers' own port of tomesd gets wrong, point by point as docs/en/developers/upstream.md has it.

And that ours does not. The port is the one that is installed, on ppdiffusers' real classes. A point that PaddleMIX
mends fails here, so that the page is mended too.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from functools import cache
from threading import Thread
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.static import InputSpec
from ppdiffusers import StableDiffusionControlNetPipeline, StableDiffusionSAGPipeline
from ppdiffusers.models.attention import BasicTransformerBlock
from ppdiffusers.patches import tomesd_patch_utils

import tiny
from patching.contract import marks_of
from patching.port import apply_port, remove_port
from ppdiffusers_tome import NothingToMergeError, ToMeError, apply_tome, remove_tome
from ppdiffusers_tome.tuning.random_state import untouched_random_state
from zoo import Specimen, specimens
from zoo.coverage import coverage, list_specimens

pytestmark = pytest.mark.once

PADDLE_2 = paddle.__version__.startswith("2.")
MERGES, NOTHING, RAISES = "merges", "does nothing", "raises"

# What the port does at its defaults, and with ``max_downsample=2``, in each kind of denoiser in which ours merges.
ONLY_COARSER = {"controlnet_sdxl", "dit", "pixart", "sdxl", "upscaler"}
OTHER_BLOCKS = {
    "added_kv", "audio_diffusion", "latent_upscaler", "lvdm", "sd3", "st_unet", "unet_consistency", "unet_score_sde",
    "unet_unconditional", "unidiffuser", "uvit", "vid2vid_st_unet", "wuerstchen_decoder", "wuerstchen_prior",
}  # fmt: skip
OTHER_INPUTS = {"hotshot", "unet_3d", "unet_motion", "unet_spatio_temporal", "vq_diffusion"}


def denoisers() -> list[Specimen]:
    """Of ppdiffusers 0.29.0: those in which ours merges, and the priors, which the port patches too.

    Kandinsky 3's, which ppdiffusers cannot run, has none of the blocks that the port knows.
    """
    return [
        each
        for each in specimens()
        if not each.since and (each.reason is None or each.name == "prior_transformer") and each.name != "kandinsky3"
    ]


@cache
def what_the_port_does(specimen: Specimen, max_downsample: int) -> str:
    """Called as pipelines call the model, with videos of more columns than frames."""
    model = specimen.build()
    with paddle.no_grad(), untouched_random_state():  # some models draw noise of their own
        plain = specimen.run(model).numpy()
    apply_port(model, max_downsample=max_downsample)
    try:
        with paddle.no_grad(), untouched_random_state():
            return NOTHING if np.array_equal(specimen.run(model).numpy(), plain) else MERGES
    except (IndexError, ValueError, ZeroDivisionError):
        return RAISES


@pytest.mark.parametrize("specimen", [pytest.param(each, id=each.name, marks=marks_of(each)) for each in denoisers()])
def test_in_many_denoisers_it_does_nothing_or_raises(specimen: Specimen) -> None:
    at_defaults, coarser = what_the_port_does(specimen, 1), what_the_port_does(specimen, 2)
    if specimen.name in OTHER_INPUTS | {"prior_transformer"}:
        assert (at_defaults, coarser) == (RAISES, RAISES)
    elif specimen.name in OTHER_BLOCKS:
        assert (at_defaults, coarser) == (NOTHING, NOTHING)
    else:
        assert (at_defaults, coarser) == (NOTHING if specimen.name in ONLY_COARSER else MERGES, MERGES)


@pytest.mark.sweep
@pytest.mark.skipif(PADDLE_2, reason="other pipelines import there")
def test_how_many_pipelines_it_serves() -> None:
    """A pipeline in which one model raises cannot draw; one in which no model merges is as it was."""

    def verdict(pipeline: Any, max_downsample: int) -> str:
        looked_at = [each for each in list_specimens(pipeline.name) if each in denoisers()]
        found = {what_the_port_does(each, max_downsample) for each in looked_at}
        return RAISES if RAISES in found else MERGES if MERGES in found else NOTHING

    ours = [each for each in coverage() if each.merges]
    assert len(ours) == 102
    assert Counter(verdict(each, 1) for each in ours) == {MERGES: 42, NOTHING: 46, RAISES: 14}
    assert Counter(verdict(each, 2) for each in ours) == {MERGES: 53, NOTHING: 35, RAISES: 14}


def test_what_it_gets_right_both_denoisers_of_a_controlnet_pipeline() -> None:
    pipe = tiny.pipeline(StableDiffusionControlNetPipeline, controlnet=tiny.multi_controlnet())
    apply_port(pipe)
    for model in (pipe.unet, pipe.controlnet):
        assert any(type(layer).__name__ == "ToMeBasicTransformerBlock" for layer in model.sublayers())


def test_what_it_gets_right_applying_again_replaces_the_settings() -> None:
    expected = tiny.run_unet(apply_port(tiny.unet(), ratio=0.6, use_rand=False))
    unet = apply_port(apply_port(tiny.unet(), max_downsample=2, merge_mlp=True), ratio=0.6, use_rand=False)
    assert np.array_equal(tiny.run_unet(unet), expected)


@pytest.mark.parametrize(("height", "width"), [(16, 24), (32, 16)])
def test_what_it_gets_right_sizes_that_are_not_square(height: int, width: int) -> None:
    """Of 64 pixels times a whole number, at all levels."""
    settings = dict(ratio=0.5, max_downsample=8, use_rand=False)
    expected = tiny.run_unet(apply_tome(tiny.unet(4), **settings), height=height, width=width)
    found = tiny.run_unet(apply_port(tiny.unet(4), **settings), height=height, width=width)
    assert np.abs(found - expected).max() <= 1e-4


def test_a_grid_smaller_than_a_cell_loses_tokens_in_silence() -> None:
    """1x4 tokens and a stride of 2x2: no destination, and still two tokens are merged away."""
    tokens = tiny.array((2, 4, 8))
    match = tomesd_patch_utils.bipartite_soft_matching_random2d
    if PADDLE_2:
        with pytest.raises(ValueError, match="expand"):
            match(tokens, 4, 1, 2, 2, 2, no_rand=True)[0](tokens)
    else:
        merge, unmerge = match(tokens, 4, 1, 2, 2, 2, no_rand=True)
        lost = (unmerge(merge(tokens)).numpy() == 0).all(axis=-1)
        assert lost.sum(axis=-1).tolist() == [2, 2]
    # An image of 64x256 pixels at level 8.
    plain = tiny.run_unet(tiny.unet(4), height=8, width=32)
    with pytest.warns(UserWarning, match="smaller than one cell"):
        ours = tiny.run_unet(apply_tome(tiny.unet(4), max_downsample=8), height=8, width=32)
    assert not np.array_equal(ours, plain)


def test_the_level_is_guessed_and_some_sizes_raise() -> None:
    """33x36 latents have 5x5 tokens at level 8, which the port takes for 5x6 at level 7."""
    assert tiny.run_unet(tiny.unet(4), height=33, width=36).shape == (2, 4, 33, 36)
    with pytest.raises(ValueError, match="expand"):
        tiny.run_unet(apply_port(tiny.unet(4), max_downsample=8), height=33, width=36)
    assert tiny.run_unet(apply_tome(tiny.unet(4), max_downsample=8), height=33, width=36).shape == (2, 4, 33, 36)


@paddle.no_grad()
def test_a_latent_given_by_keyword_raises() -> None:
    given = dict(sample=tiny.latent(), timestep=500, encoder_hidden_states=tiny.text())
    with pytest.raises(IndexError):
        apply_port(tiny.unet())(**given)
    assert apply_tome(tiny.unet())(**given).sample.shape == [2, 4, 16, 16]


def test_an_attention_mask_raises() -> None:
    masked = dict(attention_mask=paddle.ones([2, 256]))
    assert tiny.run_unet(tiny.unet(1), **masked).shape == (2, 4, 16, 16)
    with pytest.raises(ValueError, match="roadcast"):
        tiny.run_unet(apply_port(tiny.unet(1)), **masked)
    assert tiny.run_unet(apply_tome(tiny.unet(1)), **masked).shape == (2, 4, 16, 16)


def test_a_block_of_ones_own_loses_its_forward() -> None:
    """The port's copy of ``BasicTransformerBlock.forward`` replaces whatever a subclass has."""

    class Counting(BasicTransformerBlock):
        calls = 0

        def forward(self, *args: Any, **kwargs: Any) -> paddle.Tensor:
            Counting.calls += 1
            return super().forward(*args, **kwargs)

    def calls_of(model: tiny.Model) -> int:
        before = Counting.calls
        tiny.run_unet(model)
        return Counting.calls - before

    unet = tiny.unet()
    for layer in unet.sublayers():
        if type(layer) is BasicTransformerBlock:
            layer.__class__ = Counting
    assert calls_of(unet) == 7
    assert calls_of(apply_port(unet)) == 0
    assert calls_of(apply_tome(unet)) == 7


def test_chunked_feed_forward_raises() -> None:
    def build_chunked() -> tiny.Model:
        unet = tiny.unet(1)
        for layer in unet.sublayers():
            if isinstance(layer, BasicTransformerBlock):
                layer.set_chunk_feed_forward(64, dim=1)
        return unet

    with pytest.raises(ValueError, match="divisible by chunk size"):
        tiny.run_unet(apply_port(build_chunked(), ratio=0.4, merge_mlp=True))
    with pytest.warns(UserWarning, match="chunking"):
        tiny.run_unet(apply_tome(build_chunked(), 0.4, merge_mlp=True))


@pytest.mark.skipif(PADDLE_2, reason="the pipeline itself needs Paddle 3")
def test_attention_maps_that_a_pipeline_reads_raise() -> None:
    pipe = apply_port(tiny.pipeline(StableDiffusionSAGPipeline), max_downsample=8)
    with pytest.raises(ValueError, match="eshape"):
        tiny.run_pipeline(pipe)
    with pytest.warns(UserWarning, match="attention maps"):
        tiny.run_pipeline(apply_tome(pipe, max_downsample=8))


def test_it_moves_the_global_generator() -> None:
    unet = apply_port(tiny.unet())
    before = tiny.random_states()
    with untouched_random_state():
        tiny.run_unet(unet)
        assert tiny.random_states() != before
    tiny.run_unet(apply_tome(unet))
    assert tiny.random_states() == before


def test_the_same_generator_gives_another_image() -> None:
    """Nothing but the destinations is random here: the noise is given."""
    pipe = tiny.pipeline()
    with untouched_random_state():
        apply_port(pipe)
        assert np.abs(tiny.run_pipeline(pipe) - tiny.run_pipeline(pipe)).max() > 1e-3
    apply_tome(pipe)
    assert np.array_equal(tiny.run_pipeline(pipe), tiny.run_pipeline(pipe))


def test_removing_leaves_attributes_behind() -> None:
    pipe = tiny.pipeline()
    before = [tiny.snapshot(layer) for layer in (pipe.unet, pipe.text_encoder)]
    remove_port(apply_port(pipe))
    assert "_tome_info" in vars(pipe.unet)
    assert "_tome_info" in vars(pipe.text_encoder)  # in which nothing ever merged
    assert sum("_tome_info" in vars(layer) for layer in pipe.unet.sublayers()) == 7
    remove_tome(pipe)
    assert [tiny.snapshot(layer) for layer in (pipe.unet, pipe.text_encoder)] == before


def test_removing_from_a_part_breaks_the_rest() -> None:
    """All blocks share one dictionary of hooks, and whichever is asked removes them all."""
    unet = apply_port(tiny.unet())
    remove_port(unet.mid_block)
    with pytest.raises(TypeError, match="cannot unpack"):
        tiny.run_unet(unet)
    tiny.run_unet(apply_port(unet))
    remove_port(unet.mid_block)
    with pytest.raises(ValueError, match="expand"):  # the size of the call before
        tiny.run_unet(unet, height=8, width=24)
    apply_tome(unet, max_downsample=2)
    remove_tome(unet.mid_block)
    assert unet.tome.blocks == {"": 6}
    tiny.run_unet(unet)


def test_removing_from_a_copy_breaks_the_original() -> None:
    """As a training's moving average does, ``copy.deepcopy`` copies the handle of the original's hook."""
    unet = apply_port(tiny.unet())
    remove_port(copy.deepcopy(unet))
    with pytest.raises(TypeError, match="cannot unpack"):
        tiny.run_unet(unet)
    expected = tiny.run_unet(apply_tome(unet))
    remove_tome(copy.deepcopy(unet))
    assert np.array_equal(tiny.run_unet(unet), expected)


@pytest.mark.skipif(PADDLE_2, reason="Paddle 2.6 cannot pickle any model")
def test_a_model_cannot_be_pickled() -> None:
    unet = pickle.loads(pickle.dumps(tiny.unet()))
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        pickle.dumps(apply_port(unet))
    expected = tiny.run_unet(apply_tome(unet))
    assert np.array_equal(tiny.run_unet(pickle.loads(pickle.dumps(unet))), expected)


def test_two_sizes_at_once_raise() -> None:
    """The size is kept on the model, so a call in another thread changes it under the one that runs."""

    def run(unet: tiny.Model) -> np.ndarray:
        other = Thread(target=lambda: tiny.run_unet(unet, height=12, width=24))

        def call_meanwhile(layer: tiny.Model, inputs: Any, output: Any) -> None:
            listener.remove()
            other.start()
            other.join()

        listener = unet.conv_in.register_forward_post_hook(call_meanwhile)
        return tiny.run_unet(unet)

    with pytest.raises(ValueError, match="expand"):
        run(apply_port(tiny.unet()))
    expected = tiny.run_unet(apply_tome(tiny.unet()))
    assert np.array_equal(run(apply_tome(tiny.unet())), expected)


def test_nothing_can_be_trained_or_guided_by_a_gradient() -> None:
    def gradient(unet: tiny.Model) -> np.ndarray:
        latent = tiny.latent()
        latent.stop_gradient = False
        unet(latent, 500, tiny.text()).sample.square().sum().backward()
        return latent.grad.numpy()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(apply_port(tiny.unet()))
    assert np.abs(gradient(apply_tome(tiny.unet()))).max() > 1


@pytest.mark.sweep
@pytest.mark.skipif(PADDLE_2, reason="the page speaks of Paddle 3.3.1")
def test_a_recorded_program_computes_something_else() -> None:
    class Called(paddle.nn.Layer):
        def __init__(self, unet: tiny.Model) -> None:
            super().__init__()
            self.unet = unet

        def forward(self, latent: paddle.Tensor, text: paddle.Tensor) -> paddle.Tensor:
            return self.unet(latent, paddle.to_tensor(500), text, return_dict=False)[0]

    @paddle.no_grad()
    def run_program(unet: tiny.Model) -> np.ndarray:
        shapes = [InputSpec([2, 4, 16, 16]), InputSpec(tiny.text().shape)]
        called = Called(unet)
        called.eval()
        program = paddle.jit.to_static(called, input_spec=shapes)
        return program(tiny.latent(), tiny.text()).numpy()

    def difference(unet: tiny.Model) -> float:
        return np.abs(run_program(unet) - tiny.run_unet(unet)).max()

    assert difference(tiny.unet(1)) < 1e-3
    assert difference(apply_port(tiny.unet(1), use_rand=False)) > 0.1
    # That ours does not is held by tests/export.


@pytest.mark.parametrize(
    "settings", [dict(ratio=-0.5), dict(merge_attn=False), dict(max_downsample=0)], ids=str
)
def test_settings_that_merge_nothing_are_taken_in_silence(settings: dict[str, Any]) -> None:
    plain = tiny.run_unet(tiny.unet())
    assert np.array_equal(tiny.run_unet(apply_port(tiny.unet(), **settings)), plain)
    with pytest.raises(ToMeError):
        apply_tome(tiny.unet(), **settings)


def test_what_has_no_tokens_is_taken_in_silence() -> None:
    for layer in (tiny.vae(), paddle.nn.Linear(2, 2)):
        assert apply_port(layer) is layer
        with pytest.raises(NothingToMergeError):
            apply_tome(layer)


def test_its_functions_cannot_be_imported() -> None:
    """``patch_to`` puts them on the classes and leaves None in the module."""
    assert tomesd_patch_utils.apply_tome is None
    assert tomesd_patch_utils.remove_tome is None
