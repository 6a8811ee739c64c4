"""Whole pipelines, of images, videos and sound: each merges, and is itself again when ToMe is removed."""

from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.pipelines.text_to_video_synthesis.pipeline_text_to_video_zero import CrossFrameAttnProcessor2_5
from studio import drop_controlnet

import tiny
from patching.helpers import count_queries
from pipelines import images, videos
from pipelines.images import LATENT, SIZE, WORDS, build_sd, build_sdxl, unclip_decoder
from pipelines.whole import check_merging, draw, make_pipeline, sag_fails_on_paddle_2, text_parts
from ppdiffusers_tome import apply_tome
from zoo import added_kv, controlnet_sdxl
from zoo.specimen import attention_anywhere, normal, smooth_image

CASES = {**images.CASES, **videos.CASES}
# How many blocks merge.
BLOCKS = {"dit": 2, "pixart": 2, "sd3": 2, "unidiffuser": 3, "wuerstchen_prior": 2}
# Of two steps the second alone: they begin with what is noised halfway.
BEGIN_IN_THE_MIDDLE = ("img2img", "controlnet_img2img", "sdxl_refiner", "sdxl_inpaint", "video_to_video")


@pytest.mark.parametrize("name", CASES)
def test_pipeline_merges_and_is_itself_again_when_removed(name: str) -> None:
    pipe, draw = make_pipeline(CASES[name])
    check_merging(pipe, draw, begins_in_the_middle=name in BEGIN_IN_THE_MIDDLE)
    if name in BLOCKS:
        assert sum(pipe.apply_tome(0.5).tome.blocks.values()) == BLOCKS[name]


def test_a_pipeline_without_its_controlnet_keeps_its_settings() -> None:
    controlnet = controlnet_sdxl.SPECIMEN.build()
    pipe = build_sdxl("StableDiffusionXLControlNetPipeline", controlnet=controlnet, force_zeros_for_empty_prompt=False)
    assert drop_controlnet(pipe).config.force_zeros_for_empty_prompt is False


def test_a_text_mask_goes_with_a_merged_image() -> None:
    """unCLIP's decoder masks texts in attention that has the image's keys behind them: as if they were shorter."""
    decoder = unclip_decoder()
    text, labels = normal(2, 5, added_kv.CROSS_DIM, seed=2), normal(2, 32, seed=3)

    @paddle.no_grad()
    def decode(text: paddle.Tensor, **given: Any) -> np.ndarray:
        given = dict(encoder_hidden_states=text, class_labels=labels, **given)
        return decoder(smooth_image(2, 3, 16, 16), 500, **given).sample.numpy()

    mask = paddle.to_tensor([[1.0, 1, 1, 0, 0]] * 2)
    plain = decode(text, attention_mask=mask)
    decoder.apply_tome(0.5)
    masked = decode(text, attention_mask=mask)
    assert np.abs(masked - plain).max() > 1e-3
    assert np.abs(masked - decode(text[:, :3])).max() <= 1e-5
    assert np.abs(masked - decode(text)).max() > 1e-3


@sag_fails_on_paddle_2
@pytest.mark.parametrize("settings", [dict(), dict(max_downsample=8)], ids=["finest", "all"])
def test_self_attention_guidance_gets_whole_maps(settings: dict[str, Any]) -> None:
    """It keeps the maps of the middle block, which therefore stays unmerged at any setting."""
    pipe, call = build_sd("StableDiffusionSAGPipeline"), dict(sag_scale=0.75, **tiny.PROMPT_EMBEDS, **LATENT, **SIZE)
    with count_queries(pipe) as plainly:
        plain = draw(pipe, call)
    pipe.apply_tome(0.5, **settings)
    attention = pipe.unet.mid_block.attentions[0].transformer_blocks[0].attn1
    with count_queries(pipe) as merging:
        merged = draw(pipe, call)
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-4
    assert attention.processor.attention_probs.shape[-2:] == [64, 64]
    fewer = {name for name in plainly if merging[name] != plainly[name]}
    middle = {name for name in plainly if "mid_block" in name}
    assert len(fewer) == sum(pipe.tome.blocks.values()) - (1 if settings else 0)
    assert not fewer & middle
    without = draw(pipe, {**call, "sag_scale": 0})
    assert np.abs(merged - without).max() > 1e-4
    assert np.array_equal(draw(pipe.remove_tome(), call), plain)


@pytest.mark.parametrize("settings", [dict(), dict(max_downsample=8)], ids=["finest", "all"])
def test_attend_and_excite_gets_whole_maps_and_gradients(settings: dict[str, Any]) -> None:
    """It keeps the maps of its cross-attention, which therefore stays unmerged; all else merges."""
    pipe = build_sd("StableDiffusionAttendAndExcitePipeline", **text_parts())
    call = dict(
        token_indices=[2, 3], attn_res=(16, 16), max_iter_to_alter=2, thresholds={0: 0.05}, **WORDS, **LATENT, **SIZE
    )
    without_guidance = {**call, "max_iter_to_alter": 0, "thresholds": {}}
    plain = draw(pipe, call)
    pipe.apply_tome(0.5, **settings)
    merged = draw(pipe, call)
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-4
    # The maps' gradients reach the latents through merged self-attention: guidance still moves the image.
    assert np.abs(merged - draw(pipe, without_guidance)).max() > 1e-4
    pipe.apply_tome(0.5, merge_crossattn=True, **settings)
    with pytest.warns(UserWarning, match="AttendExciteAttnProcessor keeps attention maps of all tokens"):
        assert np.array_equal(draw(pipe, call), merged)
    assert np.array_equal(draw(pipe.remove_tome(), call), plain)


def test_attention_to_the_first_frame_merges() -> None:
    """With the processor that text to video without training has on a GPU, which keeps no maps."""
    unet = tiny.unet()
    unet.set_attn_processor(CrossFrameAttnProcessor2_5(batch_size=2))

    def run() -> np.ndarray:
        with attention_anywhere(), paddle.no_grad():
            return unet(tiny.latent(4), 500, encoder_hidden_states=tiny.text(4)).sample.numpy()

    plain = run()
    apply_tome(unet, 0.5)
    merged = run()
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-3
