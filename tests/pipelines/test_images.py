"""Whole pipelines that draw images: every one merges, sees fewer tokens, and is itself again when ToMe is removed.

The plain text-to-image pipeline and ControlNet for Stable Diffusion are in ``tests/api/test_pipeline.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from PIL import Image

import tiny
from patching.test_processors import load_ip_adapter
from ppdiffusers_tome import NothingToMergeError
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.tools.demo_model import MODEL
from zoo import (
    added_kv,
    controlnet_sdxl,
    gligen,
    latent_upscaler,
    sdxl,
    unet_consistency,
    upscaler,
)
from zoo import unet_score_sde as score_sde
from zoo import unet_unconditional as unconditional
from zoo.specimen import create, normal, picture, untouched_random_state

TOKENIZER = MODEL / "tokenizer"
SIDE = 32  # of pictures, in pixels; a latent's is half of it
# What most pipelines are called with.
TEXT: dict[str, Any] = dict(
    prompt_embeds=tiny.text(1), negative_prompt_embeds=normal(1, tiny.TEXT_TOKENS, tiny.CROSS_DIM, seed=4)
)
LATENT: dict[str, Any] = dict(num_inference_steps=2, output_type="latent")
SIZE: dict[str, Any] = dict(height=SIDE, width=SIDE)
PROMPT: dict[str, Any] = dict(prompt="a red circle", negative_prompt="a blue star")

Made = tuple[Any, dict[str, Any]]


def rgb(seed: int = 5, side: int = SIDE) -> paddle.Tensor:
    """A picture, ``[1, 3, side, side]`` between 0 and 1."""
    return paddle.nn.functional.sigmoid(picture(1, 3, side, side, seed=seed))


def photo() -> Image.Image:
    return Image.fromarray((rgb()[0].transpose([1, 2, 0]).numpy() * 255).astype(np.uint8))


def mask(side: int = SIDE) -> paddle.Tensor:
    """``[1, 1, side, side]``, 1 in the right half."""
    return paddle.concat([paddle.zeros([1, 1, side, side // 2]), paddle.ones([1, 1, side, side // 2])], axis=-1)


def tokenizer() -> Any:
    from ppdiffusers.transformers import CLIPTokenizer

    return CLIPTokenizer.from_pretrained(str(TOKENIZER))


def clip_text(kind: str = "CLIPTextModel", width: int = tiny.CROSS_DIM, **settings: Any) -> Any:
    """A text encoder that goes with ``tokenizer``."""
    from ppdiffusers import transformers

    reads = tokenizer()
    config = transformers.CLIPTextConfig(
        vocab_size=len(reads), hidden_size=width, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, projection_dim=width, bos_token_id=reads.bos_token_id,
        eos_token_id=reads.eos_token_id, **settings,
    )  # fmt: skip
    return create(getattr(transformers, kind), config=config)


def text_parts() -> dict[str, Any]:
    return dict(tokenizer=tokenizer(), text_encoder=clip_text())


def pipeline(name: str, **parts: Any) -> Any:
    pipe = getattr(ppdiffusers, name)(**parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def sd(name: str, **parts: Any) -> Any:
    """A pipeline that is made of Stable Diffusion's parts."""
    return tiny.pipeline(getattr(ppdiffusers, name), **parts)


CASES: dict[str, Callable[[], Made]] = {}


def case(make: Callable[[], Made]) -> Callable[[], Made]:
    """Adds a pipeline, and what it is called with, under the function's name."""
    CASES[make.__name__] = make
    return make


# Stable Diffusion


@case
def img2img() -> Made:
    return sd("StableDiffusionImg2ImgPipeline"), dict(image=rgb(), strength=0.8, **TEXT, **LATENT)


@case
def inpaint() -> Made:
    pipe = sd("StableDiffusionInpaintPipeline", unet=tiny.unet(in_channels=9))
    return pipe, dict(image=rgb(), mask_image=mask(), **TEXT, **LATENT, **SIZE)


@case
def inpaint_legacy() -> Made:
    call = dict(image=rgb() * 2 - 1, mask_image=mask(), strength=0.9, **TEXT, **LATENT)
    return sd("StableDiffusionInpaintPipelineLegacy"), call


@case
def instruct_pix2pix() -> Made:
    pipe = sd("StableDiffusionInstructPix2PixPipeline", unet=tiny.unet(in_channels=8))
    return pipe, dict(image=rgb(), **TEXT, **LATENT)


@case
def upscale() -> Made:
    parts = dict(
        vae=tiny.vae(), text_encoder=None, tokenizer=None, unet=upscaler.SPECIMEN.build(), scheduler=tiny.scheduler(),
        low_res_scheduler=ppdiffusers.DDPMScheduler(),
    )  # fmt: skip
    return pipeline("StableDiffusionUpscalePipeline", **parts), dict(image=rgb(), **TEXT, **LATENT)


@case
def latent_upscale() -> Made:
    parts = dict(
        vae=tiny.vae(), **text_parts(), unet=latent_upscaler.SPECIMEN.build(),
        scheduler=ppdiffusers.EulerDiscreteScheduler(),
    )  # fmt: skip
    return pipeline("StableDiffusionLatentUpscalePipeline", **parts), dict(image=tiny.latent(1), **PROMPT, **LATENT)


@case
def depth2img() -> Made:
    parts = dict(
        vae=tiny.vae(), text_encoder=None, tokenizer=None, unet=tiny.unet(in_channels=5), scheduler=tiny.scheduler(),
        depth_estimator=None, feature_extractor=None,
    )  # fmt: skip
    call = dict(image=rgb(), depth_map=normal(1, SIDE, SIDE), **TEXT, **LATENT)
    return pipeline("StableDiffusionDepth2ImgPipeline", **parts), call


def lcm(name: str) -> Any:
    return sd(name, unet=tiny.unet(time_cond_proj_dim=8), scheduler=ppdiffusers.LCMScheduler())


@case
def latent_consistency() -> Made:
    return lcm("LatentConsistencyModelPipeline"), dict(prompt_embeds=TEXT["prompt_embeds"], **LATENT, **SIZE)


@case
def latent_consistency_img2img() -> Made:
    call = dict(prompt_embeds=TEXT["prompt_embeds"], image=rgb(), **LATENT)
    return lcm("LatentConsistencyModelImg2ImgPipeline"), call


@case
def panorama() -> Made:
    """Wide enough for two views."""
    pipe = sd("StableDiffusionPanoramaPipeline")
    pipe.vae_scale_factor = 8  # the views are counted with it
    return pipe, dict(**TEXT, **LATENT, height=64, width=576)


@case
def cycle() -> Made:
    call = dict(image=rgb(), source_prompt="a blue circle", strength=0.8, prompt="a red circle", **LATENT)
    return sd("CycleDiffusionPipeline", **text_parts()), call


@case
def gligen_boxes() -> Made:
    call = dict(gligen_phrases=["a circle"], gligen_boxes=[[0.1, 0.1, 0.6, 0.7]], **PROMPT, **LATENT, **SIZE)
    return sd("StableDiffusionGLIGENPipeline", unet=gligen.SPECIMEN.build(), **text_parts()), call


@case
def ip_adapter() -> Made:
    from ppdiffusers.transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=SIDE, patch_size=16,
        projection_dim=6,
    )  # fmt: skip
    unet = tiny.unet()
    load_ip_adapter(unet, Path())
    pipe = sd(
        "StableDiffusionPipeline", unet=unet, image_encoder=create(CLIPVisionModelWithProjection, config=config),
        feature_extractor=CLIPImageProcessor(size=dict(shortest_edge=SIDE), crop_size=dict(height=SIDE, width=SIDE)),
    )  # fmt: skip
    return pipe, dict(ip_adapter_image=photo(), **TEXT, **LATENT, **SIZE)


# Adapters and ControlNet


def t2i_adapter(channels: tuple[int, ...], downscale_factor: int, kind: str) -> Any:
    return create(
        ppdiffusers.T2IAdapter, in_channels=3, channels=channels, num_res_blocks=1, downscale_factor=downscale_factor,
        adapter_type=kind,
    )  # fmt: skip


@case
def adapter() -> Made:
    call = dict(image=rgb(), **TEXT, **LATENT, **SIZE)
    return sd("StableDiffusionAdapterPipeline", adapter=t2i_adapter((8, 16), 2, "full_adapter")), call


@case
def controlnet_img2img() -> Made:
    call = dict(image=rgb(), control_image=rgb(6), **TEXT, **LATENT)
    return sd("StableDiffusionControlNetImg2ImgPipeline", controlnet=tiny.controlnet()), call


@case
def controlnet_inpaint() -> Made:
    call = dict(image=rgb(), mask_image=mask(), control_image=rgb(6), **TEXT, **LATENT, **SIZE)
    return sd("StableDiffusionControlNetInpaintPipeline", controlnet=tiny.controlnet()), call


# SDXL


def xl(name: str, **parts: Any) -> Any:
    pooled = clip_text("CLIPTextModelWithProjection", sdxl.POOLED_DIM)  # its width tells how wide the embeddings are
    defaults = dict(
        vae=tiny.vae(), text_encoder=None, text_encoder_2=pooled, tokenizer=None, tokenizer_2=None,
        unet=sdxl.SPECIMEN.build(), scheduler=ppdiffusers.EulerDiscreteScheduler(), add_watermarker=False,
    )  # fmt: skip
    if name == "StableDiffusionXLAdapterPipeline":
        del defaults["add_watermarker"]
    return pipeline(name, **{**defaults, **parts})


XL_TEXT: dict[str, Any] = dict(
    **TEXT, pooled_prompt_embeds=normal(1, sdxl.POOLED_DIM, seed=6),
    negative_pooled_prompt_embeds=normal(1, sdxl.POOLED_DIM, seed=7),
)  # fmt: skip


@case
def sdxl_base() -> Made:
    return xl("StableDiffusionXLPipeline"), dict(**XL_TEXT, **LATENT, **SIZE)


@case
def sdxl_refiner() -> Made:
    """It takes over latents, and its last numbers are marks for beauty, five in all."""
    width = sdxl.POOLED_DIM + 5 * sdxl.SIZE_DIM
    unet = sdxl.SPECIMEN.build(projection_class_embeddings_input_dim=width)
    pipe = xl("StableDiffusionXLImg2ImgPipeline", unet=unet, requires_aesthetics_score=True)
    call = dict(image=tiny.latent(1), denoising_start=0.5, **XL_TEXT, output_type="latent", num_inference_steps=4)
    return pipe, call


@case
def sdxl_inpaint() -> Made:
    call = dict(image=rgb(), mask_image=mask(), strength=0.9, **XL_TEXT, **LATENT, **SIZE)
    return xl("StableDiffusionXLInpaintPipeline"), call


@case
def sdxl_instruct_pix2pix() -> Made:
    unet = sdxl.SPECIMEN.build(in_channels=8)
    return xl("StableDiffusionXLInstructPix2PixPipeline", unet=unet), dict(image=rgb(), **XL_TEXT, **LATENT, **SIZE)


@case
def sdxl_controlnet() -> Made:
    pipe = xl("StableDiffusionXLControlNetPipeline", controlnet=controlnet_sdxl.SPECIMEN.build())
    return pipe, dict(image=rgb(), **XL_TEXT, **LATENT, **SIZE)


@case
def sdxl_controlnet_img2img() -> Made:
    pipe = xl("StableDiffusionXLControlNetImg2ImgPipeline", controlnet=controlnet_sdxl.SPECIMEN.build())
    return pipe, dict(image=rgb(), control_image=rgb(6), **XL_TEXT, **LATENT, **SIZE)


@case
def sdxl_adapter() -> Made:
    pipe = xl("StableDiffusionXLAdapterPipeline", adapter=t2i_adapter((8, 16, 16, 16), 4, "full_adapter_xl"))
    return pipe, dict(image=rgb(), **XL_TEXT, **LATENT, **SIZE)


# DeepFloyd IF, Kandinsky 2, unCLIP


def deepfloyd(name: str, **parts: Any) -> Any:
    scheduler = ppdiffusers.DDPMScheduler(
        beta_schedule="squaredcos_cap_v2", thresholding=True, variance_type="learned_range"
    )
    defaults = dict(
        tokenizer=None, text_encoder=None, unet=added_kv.SPECIMEN.build(), scheduler=scheduler, safety_checker=None,
        feature_extractor=None, watermarker=None, requires_safety_checker=False,
    )  # fmt: skip
    return pipeline(name, **{**defaults, **parts})


IF_CALL: dict[str, Any] = dict(
    prompt_embeds=normal(1, 5, added_kv.TEXT_DIM, seed=2), num_inference_steps=2, output_type="pd",
    negative_prompt_embeds=normal(1, 5, added_kv.TEXT_DIM, seed=4),
)  # fmt: skip


@case
def deepfloyd_if() -> Made:
    return deepfloyd("IFPipeline"), dict(**IF_CALL, height=16, width=16)


@case
def deepfloyd_if_img2img() -> Made:
    return deepfloyd("IFImg2ImgPipeline"), dict(image=rgb(side=16), **IF_CALL)


@case
def deepfloyd_if_super_resolution() -> Made:
    settings = {**added_kv.SPECIMEN.config, "in_channels": 6, "class_embed_type": "timestep"}
    unet = create(ppdiffusers.UNet2DConditionModel, **settings)
    noising = ppdiffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2")
    pipe = deepfloyd("IFSuperResolutionPipeline", unet=unet, image_noising_scheduler=noising)
    return pipe, dict(image=rgb(side=8), **IF_CALL, height=16, width=16)


def vqvae(channels: int = 3, **settings: Any) -> Any:
    return create(
        ppdiffusers.VQModel, block_out_channels=(32, 32), latent_channels=channels, num_vq_embeddings=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, **settings,
    )  # fmt: skip


IMAGE_DIM = added_kv.CROSS_DIM  # Kandinsky 2.1 has one width for both
EMBEDDED_IMAGE: dict[str, Any] = dict(
    image_embeds=normal(1, IMAGE_DIM, seed=6), negative_image_embeds=normal(1, IMAGE_DIM, seed=7)
)


def kandinsky_unet(kind: str, **settings: Any) -> Any:
    return create(
        ppdiffusers.UNet2DConditionModel, **added_kv.SHARED, in_channels=4, out_channels=8, addition_embed_type=kind,
        encoder_hid_dim_type=f"{kind}_proj", **settings,
    )  # fmt: skip


@case
def kandinsky() -> Made:
    from ppdiffusers.pipelines.kandinsky.text_encoder import MCLIPConfig, MultilingualCLIP

    config = MCLIPConfig(
        vocab_size=len(tokenizer()), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=100, transformerDimSize=8, imageDimSize=IMAGE_DIM,
    )  # fmt: skip
    unet = kandinsky_unet("text_image", encoder_hid_dim=8, cross_attention_norm=None)
    parts = dict(
        text_encoder=create(MultilingualCLIP, config=config), tokenizer=tokenizer(), unet=unet,
        scheduler=ppdiffusers.DDIMScheduler(clip_sample=False), movq=vqvae(4, norm_type="spatial"),
    )  # fmt: skip
    return pipeline("KandinskyPipeline", **parts), dict(**EMBEDDED_IMAGE, **PROMPT, **SIZE, num_inference_steps=2)


def kandinsky_2_2(name: str) -> Any:
    unet = kandinsky_unet("image", encoder_hid_dim=IMAGE_DIM)
    return pipeline(name, unet=unet, scheduler=ppdiffusers.DDPMScheduler(), movq=vqvae(4, norm_type="spatial"))


@case
def kandinsky_v22() -> Made:
    return kandinsky_2_2("KandinskyV22Pipeline"), dict(**EMBEDDED_IMAGE, **SIZE, **LATENT)


@case
def kandinsky_v22_img2img() -> Made:
    call = dict(**EMBEDDED_IMAGE, **SIZE, image=photo(), strength=0.8, num_inference_steps=3, output_type="np")
    return kandinsky_2_2("KandinskyV22Img2ImgPipeline"), call


@case
def unclip() -> Made:
    from ppdiffusers.pipelines.unclip.text_proj import UnCLIPTextProjModel

    width, cross, time = 32, added_kv.CROSS_DIM, 4 * added_kv.SHARED["block_out_channels"][0]
    text_proj = create(UnCLIPTextProjModel, clip_embeddings_dim=width, time_embed_dim=time, cross_attention_dim=cross)
    decoder = create(
        ppdiffusers.UNet2DConditionModel, **added_kv.SHARED, in_channels=3, out_channels=6, class_embed_type="identity"
    )
    larger = {**unconditional.SPECIMEN.config, "in_channels": 6, "sample_size": 32}
    parts = dict(
        prior=create(ppdiffusers.PriorTransformer, num_attention_heads=2, attention_head_dim=4, embedding_dim=width,
                    num_layers=1, num_embeddings=32),
        decoder=decoder, text_encoder=clip_text("CLIPTextModelWithProjection", width), tokenizer=tokenizer(),
        text_proj=text_proj, super_res_first=create(ppdiffusers.UNet2DModel, **larger),
        super_res_last=create(ppdiffusers.UNet2DModel, **larger),
        prior_scheduler=ppdiffusers.UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", clip_sample_range=5.0
        ),
        decoder_scheduler=ppdiffusers.UnCLIPScheduler(variance_type="learned_range"),
        super_res_scheduler=ppdiffusers.UnCLIPScheduler(variance_type="fixed_small_log"),
    )  # fmt: skip
    steps = dict(prior_num_inference_steps=2, decoder_num_inference_steps=2, super_res_num_inference_steps=2)
    return pipeline("UnCLIPPipeline", **parts), dict(prompt="a red circle", output_type="np", **steps)


# Without a text


def free(name: str, scheduler: str, unet: Any = None, **settings: Any) -> Any:
    unet = unet or unconditional.SPECIMEN.build()
    return pipeline(name, unet=unet, scheduler=getattr(ppdiffusers, scheduler)(**settings))


@case
def ddpm() -> Made:
    return free("DDPMPipeline", "DDPMScheduler"), dict(num_inference_steps=2, output_type="np")


@case
def ddim() -> Made:
    return free("DDIMPipeline", "DDIMScheduler"), dict(num_inference_steps=2, output_type="np")


@case
def pndm() -> Made:
    return free("PNDMPipeline", "PNDMScheduler"), dict(num_inference_steps=4, output_type="np")


@case
def karras_ve() -> Made:
    return free("KarrasVePipeline", "KarrasVeScheduler"), dict(num_inference_steps=2, output_type="np")


@case
def score_sde_ve() -> Made:
    call = dict(num_inference_steps=2, output_type="np")
    # With a real sigma_max, two steps leave nothing but black and white.
    return free("ScoreSdeVePipeline", "ScoreSdeVeScheduler", score_sde.SPECIMEN.build(), sigma_max=0.5, snr=0.05), call


@case
def repaint() -> Made:
    call = dict(image=rgb(side=16), mask_image=mask(16), num_inference_steps=2, jump_length=1, jump_n_sample=1)
    return free("RePaintPipeline", "RePaintScheduler"), dict(**call, output_type="np")


@case
def consistency() -> Made:
    call = dict(class_labels=3, num_inference_steps=2, output_type="np")
    return free("ConsistencyModelPipeline", "CMStochasticIterativeScheduler", unet_consistency.SPECIMEN.build()), call


def ldm_unet(in_channels: int, out_channels: int) -> Any:
    settings = {**unconditional.SPECIMEN.config, "in_channels": in_channels, "out_channels": out_channels}
    return create(ppdiffusers.UNet2DModel, **settings)


@case
def ldm_uncond() -> Made:
    pipe = pipeline("LDMPipeline", vqvae=vqvae(), unet=ldm_unet(3, 3), scheduler=tiny.scheduler())
    return pipe, dict(num_inference_steps=2, output_type="np")


@case
def ldm_super_resolution() -> Made:
    pipe = pipeline("LDMSuperResolutionPipeline", vqvae=vqvae(), unet=ldm_unet(6, 3), scheduler=tiny.scheduler())
    return pipe, dict(image=rgb(side=16), num_inference_steps=2, output_type="np")


# The tests


def run(pipe: Any, call: dict[str, Any]) -> np.ndarray:
    """What a pipeline draws, always with the same noise."""
    with untouched_random_state():
        paddle.seed(3)
        np.random.seed(3)
        drawn = pipe(**call, return_dict=False)[0]
    return drawn.numpy() if isinstance(drawn, paddle.Tensor) else np.asarray(drawn)


@contextmanager
def tokens_seen(pipe: Any) -> Iterator[dict[str, list[int]]]:
    """How many tokens each attention of the denoisers makes queries of, a number a call."""
    seen: dict[str, list[int]] = {}
    hooks = []
    for part, model in list_models(pipe):
        for path, layer in model.named_sublayers():
            if path.endswith(".to_q"):
                calls = seen.setdefault(f"{part}.{path}", [])
                hooks.append(
                    layer.register_forward_post_hook(lambda _, x, output, calls=calls: calls.append(output.shape[1]))
                )
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_pipeline_merges_and_is_itself_again_when_removed(make: Callable[[], Made]) -> None:
    pipe, call = make()
    with tokens_seen(pipe) as plainly:
        plain = run(pipe, call)
    assert np.isfinite(plain).all()
    assert np.array_equal(run(pipe, call), plain)

    pipe.apply_tome(ratio=0.5)
    with tokens_seen(pipe) as merging:
        merged = run(pipe, call)
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-4
    fewer = {name for name in plainly if merging[name] != plainly[name]}
    assert len(fewer) == pipe.tome.num_blocks
    assert all(merging[name] == [count - count // 2 for count in plainly[name]] for name in fewer)

    assert np.array_equal(run(pipe.remove_tome(), call), plain)


def test_a_text_mask_goes_with_a_merged_picture() -> None:
    """unCLIP's decoder masks texts in attention that has the picture's keys behind them: as if they were shorter."""
    decoder = create(
        ppdiffusers.UNet2DConditionModel, **added_kv.SHARED, in_channels=3, out_channels=6, class_embed_type="identity"
    )
    text, labels = normal(2, 5, added_kv.CROSS_DIM, seed=2), normal(2, 32, seed=3)

    @paddle.no_grad()
    def decode(text: paddle.Tensor, **given: Any) -> np.ndarray:
        given = dict(encoder_hidden_states=text, class_labels=labels, **given)
        return decoder(picture(2, 3, 16, 16), 500, **given).sample.numpy()

    mask = paddle.to_tensor([[1.0, 1, 1, 0, 0]] * 2)
    plain = decode(text, attention_mask=mask)
    decoder.apply_tome(0.5)
    masked = decode(text, attention_mask=mask)
    assert np.abs(masked - plain).max() > 1e-3
    assert np.abs(masked - decode(text[:, :3])).max() <= 1e-5
    assert np.abs(masked - decode(text)).max() > 1e-3


def test_priors_are_refused() -> None:
    """Their tokens are embeddings."""
    prior = create(ppdiffusers.PriorTransformer, num_attention_heads=2, attention_head_dim=4, embedding_dim=IMAGE_DIM,
                  num_layers=1, num_embeddings=3)  # fmt: skip
    others = dict.fromkeys(("image_encoder", "text_encoder", "tokenizer", "scheduler", "image_processor"))
    for name in ("KandinskyPriorPipeline", "KandinskyV22PriorPipeline"):
        with pytest.raises(NothingToMergeError, match="its tokens are embeddings, not a grid"):
            pipeline(name, prior=prior, **others).apply_tome(0.5)


# Pipelines that look at attention maps


@pytest.mark.xfail(
    paddle.__version__.startswith("2."), raises=TypeError, strict=True,
    reason="the pipeline calls Tensor.reshape(b, h, hw1, hw2): on Paddle 2.6 it takes 2 to 3 positional arguments",
)  # fmt: skip
@pytest.mark.parametrize("settings", [dict(), dict(max_downsample=8)], ids=["finest", "all"])
def test_self_attention_guidance_gets_whole_maps(settings: dict[str, Any]) -> None:
    """It keeps the maps of the middle block, which therefore stays unmerged at any setting."""
    pipe, call = sd("StableDiffusionSAGPipeline"), dict(sag_scale=0.75, **TEXT, **LATENT, **SIZE)
    with tokens_seen(pipe) as plainly:
        plain = run(pipe, call)
    pipe.apply_tome(0.5, **settings)
    attention = pipe.unet.mid_block.attentions[0].transformer_blocks[0].attn1
    with tokens_seen(pipe) as merging:
        merged = run(pipe, call)
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-4
    assert attention.processor.attention_probs.shape[-2:] == [64, 64]
    fewer = {name for name in plainly if merging[name] != plainly[name]}
    middle = {name for name in plainly if "mid_block" in name}
    assert len(fewer) == pipe.tome.num_blocks - (1 if settings else 0)
    assert not fewer & middle
    without = run(pipe, {**call, "sag_scale": 0})
    assert np.abs(merged - without).max() > 1e-4
    assert np.array_equal(run(pipe.remove_tome(), call), plain)


@pytest.mark.parametrize("settings", [dict(), dict(max_downsample=8)], ids=["finest", "all"])
def test_attend_and_excite_gets_whole_maps_and_gradients(settings: dict[str, Any]) -> None:
    """It keeps the maps of its cross-attention, which therefore stays unmerged; all else merges."""
    pipe = sd("StableDiffusionAttendAndExcitePipeline", **text_parts())
    call = dict(
        token_indices=[2, 3], attn_res=(16, 16), max_iter_to_alter=2, thresholds={0: 0.05}, **PROMPT, **LATENT, **SIZE
    )
    without_guidance = {**call, "max_iter_to_alter": 0, "thresholds": {}}
    plain = run(pipe, call)
    pipe.apply_tome(0.5, **settings)
    merged = run(pipe, call)
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-4
    # The maps' gradients reach the latents through merged self-attention: guidance still moves the picture.
    assert np.abs(merged - run(pipe, without_guidance)).max() > 1e-4
    pipe.apply_tome(0.5, merge_crossattn=True, **settings)
    with pytest.warns(UserWarning, match="AttendExciteAttnProcessor keeps attention maps of all tokens"):
        assert np.array_equal(run(pipe, call), merged)
    assert np.array_equal(run(pipe.remove_tome(), call), plain)


@pytest.mark.xfail(
    raises=TypeError, strict=True,
    reason="ppdiffusers gives SGD its tensors where the learning rate belongs: multiple values for 'learning_rate'",
)  # fmt: skip
def test_pix2pix_zero_gets_whole_maps_and_gradients() -> None:
    parts = dict(inverse_scheduler=None, caption_generator=None, caption_processor=None, **text_parts())
    pipe = sd("StableDiffusionPix2PixZeroPipeline", **parts)
    embeds = [normal(1, 32, tiny.CROSS_DIM, seed=seed) for seed in (6, 7)]
    call = dict(source_embeds=embeds[0], target_embeds=embeds[1], **PROMPT, **LATENT, **SIZE)
    plain = run(pipe, call)
    pipe.apply_tome(0.5, max_downsample=8, merge_crossattn=True)
    with pytest.warns(UserWarning, match="Pix2PixZeroAttnProcessor keeps attention maps of all tokens"):
        assert np.array_equal(run(pipe, call), plain)
    assert np.array_equal(run(pipe.remove_tome(), call), plain)
