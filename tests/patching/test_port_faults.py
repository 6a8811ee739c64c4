"""What the installed port of tomesd gets wrong, as docs/en/developers/upstream.md has it; a mended point fails here."""

from collections import Counter
from functools import cache
from threading import Thread
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import Layer
from ppdiffusers import StableDiffusionControlNetPipeline, StableDiffusionSAGPipeline

import tiny
from patching.contract import marks_of
from patching.helpers import chunk
from patching.port import apply_port
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.tuning.measurement import keep_random_state
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
    with paddle.no_grad(), keep_random_state():  # some models draw noise of their own
        plain = specimen.run(model).numpy()
    apply_port(model, max_downsample=max_downsample)
    try:
        with paddle.no_grad(), keep_random_state():
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


@pytest.mark.parametrize(("height", "width"), [(16, 16), (16, 24), (32, 16)])
def test_what_it_gets_right_without_randomness(height: int, width: int) -> None:
    """Sizes of 64 pixels times a whole number, at all levels."""
    settings = dict(ratio=0.5, max_downsample=8, use_rand=False, merge_crossattn=True, merge_mlp=True)
    expected = tiny.run_unet(apply_tome(tiny.unet(4), **settings), height=height, width=width)
    found = tiny.run_unet(apply_port(tiny.unet(4), **settings), height=height, width=width)
    assert np.abs(found - expected).max() <= 1e-4


@paddle.no_grad()
def run_by_keyword(unet: Layer) -> None:
    unet(sample=tiny.latent(), timestep=500, encoder_hidden_states=tiny.text())


def run_at_two_sizes(unet: Layer) -> None:
    """The size is kept on the model, so a call in another thread changes it under the one that runs."""
    other = Thread(target=lambda: tiny.run_unet(unet, height=12, width=24))

    def call_meanwhile(layer: Layer, inputs: Any, output: Any) -> None:
        listener.remove()
        other.start()
        other.join()

    listener = unet.conv_in.register_forward_post_hook(call_meanwhile)
    tiny.run_unet(unet)


def run_backward(unet: Layer) -> None:
    latent = tiny.latent()
    latent.stop_gradient = False
    unet(latent, 500, tiny.text()).sample.square().sum().backward()
    assert np.abs(latent.grad.numpy()).max() > 1


NEEDS_PADDLE_3 = pytest.mark.skipif(PADDLE_2, reason="with Paddle 2.6 not even the plain one runs")


@pytest.mark.filterwarnings("ignore:ToMe")
@pytest.mark.parametrize(
    ("build", "settings", "use", "error", "words"),
    [
        # 5x5 tokens at level 8, which the port takes for 5x6 at level 7.
        pytest.param(
            lambda: tiny.unet(4), dict(max_downsample=8), lambda unet: tiny.run_unet(unet, height=33, width=36),
            ValueError, "expand", id="a latent of 33x36",
        ),
        pytest.param(tiny.unet, {}, run_by_keyword, IndexError, "index out of range", id="a latent by keyword"),
        pytest.param(
            lambda: tiny.unet(1), {}, lambda unet: tiny.run_unet(unet, attention_mask=paddle.ones([2, 256])),
            ValueError, "roadcast", id="a mask",
        ),
        pytest.param(
            lambda: chunk(tiny.unet(1), 64, 1), dict(ratio=0.4, merge_mlp=True), tiny.run_unet,
            ValueError, "divisible by chunk", id="chunks",
        ),
        pytest.param(tiny.unet, {}, run_at_two_sizes, ValueError, "expand", id="two sizes at once"),
        pytest.param(tiny.unet, {}, run_backward, RuntimeError, "modified by an inplace operation", id="gradients"),
        pytest.param(
            lambda: tiny.pipeline(StableDiffusionSAGPipeline), dict(max_downsample=8), tiny.run_pipeline,
            ValueError, "eshape", id="attention maps that a pipeline reads", marks=NEEDS_PADDLE_3,
        ),
    ],
)  # fmt: skip
def test_it_raises_where_ours_runs(build: Any, settings: dict[str, Any], use: Any, error: Any, words: str) -> None:
    use(build())
    with pytest.raises(error, match=words):
        use(apply_port(build(), **settings))
    use(apply_tome(build(), **settings))
