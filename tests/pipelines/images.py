"""Pipelines that draw images, and what each is called with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
from PIL import Image
from ppdiffusers.pipelines.unidiffuser import UniDiffuserTextDecoder

import tiny
from patching.processors import load_ip_adapter
from pipelines.whole import Made, build_pipeline, build_text_encoder, image_encoder, load_tokenizer, text_parts
from tiny import PROMPT_EMBEDS
from zoo import added_kv, controlnet_sdxl, gligen, pixart, sd3, sdxl, unet_consistency, upscaler, wuerstchen_prior
from zoo import unet_unconditional as unconditional
from zoo import unidiffuser as zoo_unidiffuser
from zoo.specimen import create, normal, smooth_image

SIDE = 32  # of images, in pixels; a latent's is half of it
# What most pipelines are called with.
LATENT: dict[str, Any] = dict(num_inference_steps=2, output_type="latent")
SIZE: dict[str, Any] = dict(height=SIDE, width=SIDE)
WORDS: dict[str, Any] = dict(prompt="a red circle", negative_prompt="a blue star")
# What those without a text are called with.
ARRAYS: dict[str, Any] = dict(num_inference_steps=2, output_type="np")


def rgb(seed: int = 5) -> paddle.Tensor:
    """An image, ``[1, 3, SIDE, SIDE]`` between 0 and 1."""
    return paddle.nn.functional.sigmoid(smooth_image(1, 3, SIDE, SIDE, seed=seed))


def photo() -> Image.Image:
    return Image.fromarray((rgb()[0].transpose([1, 2, 0]).numpy() * 255).astype(np.uint8))


def mask() -> paddle.Tensor:
    """``[1, 1, SIDE, SIDE]``, 1 in the right half."""
    return paddle.concat([paddle.zeros([1, 1, SIDE, SIDE // 2]), paddle.ones([1, 1, SIDE, SIDE // 2])], axis=-1)


def build_sd(name: str, **parts: Any) -> Any:
    return tiny.pipeline(getattr(ppdiffusers, name), **parts)


def upscale() -> Made:
    pipe = build_pipeline(
        "StableDiffusionUpscalePipeline", vae=tiny.vae(), unet=upscaler.SPECIMEN.build(), scheduler=tiny.scheduler(),
        low_res_scheduler=ppdiffusers.DDPMScheduler(),
    )  # fmt: skip
    return pipe, dict(image=rgb(), **PROMPT_EMBEDS, **LATENT)


def panorama() -> Made:
    pipe = build_sd("StableDiffusionPanoramaPipeline")
    pipe.vae_scale_factor = 8  # the views are counted with it
    return pipe, dict(**PROMPT_EMBEDS, **LATENT, height=64, width=576)


def ip_adapter() -> Made:
    from ppdiffusers.transformers import CLIPImageProcessor

    unet = tiny.unet()
    load_ip_adapter(unet, Path())
    pipe = build_sd(
        "StableDiffusionPipeline", unet=unet, image_encoder=image_encoder(SIDE, 16, projection=6),
        feature_extractor=CLIPImageProcessor(size=dict(shortest_edge=SIDE), crop_size=dict(height=SIDE, width=SIDE)),
    )  # fmt: skip
    return pipe, dict(ip_adapter_image=photo(), **PROMPT_EMBEDS, **LATENT, **SIZE)


def build_sdxl(name: str, **parts: Any) -> Any:
    # Its width tells how wide the embeddings are.
    pooled = build_text_encoder("CLIPTextModelWithProjection", sdxl.POOLED_DIM)
    defaults = dict(
        vae=tiny.vae(), text_encoder_2=pooled, unet=sdxl.SPECIMEN.build(), add_watermarker=False,
        scheduler=ppdiffusers.EulerDiscreteScheduler(),
    )  # fmt: skip
    return build_pipeline(name, **{**defaults, **parts})


SDXL_EMBEDS: dict[str, Any] = dict(
    **PROMPT_EMBEDS, pooled_prompt_embeds=normal(1, sdxl.POOLED_DIM, seed=6),
    negative_pooled_prompt_embeds=normal(1, sdxl.POOLED_DIM, seed=7),
)  # fmt: skip


def sdxl_refiner() -> Made:
    """Make the refiner: it continues latents, and reads a mark for beauty."""
    width = sdxl.POOLED_DIM + 5 * sdxl.SIZE_DIM
    unet = sdxl.SPECIMEN.build(projection_class_embeddings_input_dim=width)
    pipe = build_sdxl("StableDiffusionXLImg2ImgPipeline", unet=unet, requires_aesthetics_score=True)
    call = dict(image=tiny.latent(1), denoising_start=0.5, **SDXL_EMBEDS, output_type="latent", num_inference_steps=4)
    return pipe, call


def deepfloyd_if() -> Made:
    scheduler = ppdiffusers.DDPMScheduler(
        beta_schedule="squaredcos_cap_v2", thresholding=True, variance_type="learned_range"
    )
    parts = dict(unet=added_kv.SPECIMEN.build(), scheduler=scheduler, requires_safety_checker=False)
    call = dict(
        prompt_embeds=normal(1, 5, added_kv.TEXT_DIM, seed=2), num_inference_steps=2, output_type="pd",
        negative_prompt_embeds=normal(1, 5, added_kv.TEXT_DIM, seed=4), height=16, width=16,
    )  # fmt: skip
    return build_pipeline("IFPipeline", **parts), call


def kandinsky_2_2() -> Made:
    unet = create(
        ppdiffusers.UNet2DConditionModel, **added_kv.SHARED, in_channels=4, out_channels=8, addition_embed_type="image",
        encoder_hid_dim_type="image_proj", encoder_hid_dim=added_kv.CROSS_DIM,
    )  # fmt: skip
    movq = create(
        ppdiffusers.VQModel, block_out_channels=(32, 32), latent_channels=4, num_vq_embeddings=8, norm_type="spatial",
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    pipe = build_pipeline("KandinskyV22Pipeline", unet=unet, scheduler=ppdiffusers.DDPMScheduler(), movq=movq)
    image, none = (normal(1, added_kv.CROSS_DIM, seed=seed) for seed in (6, 7))
    return pipe, dict(image_embeds=image, negative_image_embeds=none, **SIZE, **LATENT)


def unclip_decoder() -> paddle.nn.Layer:
    config = dict(added_kv.SHARED, in_channels=3, out_channels=6, class_embed_type="identity")
    return create(ppdiffusers.UNet2DConditionModel, **config)


def unclip() -> Made:
    from ppdiffusers.pipelines.unclip.text_proj import UnCLIPTextProjModel

    width, cross, time = 32, added_kv.CROSS_DIM, 4 * added_kv.SHARED["block_out_channels"][0]
    text_proj = create(UnCLIPTextProjModel, clip_embeddings_dim=width, time_embed_dim=time, cross_attention_dim=cross)
    larger = {**unconditional.SPECIMEN.config, "in_channels": 6, "sample_size": 32}
    parts = dict(
        prior=create(ppdiffusers.PriorTransformer, num_attention_heads=2, attention_head_dim=4, embedding_dim=width,
                     num_layers=1, num_embeddings=32),
        decoder=unclip_decoder(), text_encoder=build_text_encoder("CLIPTextModelWithProjection", width),
        tokenizer=load_tokenizer(), text_proj=text_proj, super_res_first=create(ppdiffusers.UNet2DModel, **larger),
        super_res_last=create(ppdiffusers.UNet2DModel, **larger),
        prior_scheduler=ppdiffusers.UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", clip_sample_range=5.0
        ),
        decoder_scheduler=ppdiffusers.UnCLIPScheduler(variance_type="learned_range"),
        super_res_scheduler=ppdiffusers.UnCLIPScheduler(variance_type="fixed_small_log"),
    )  # fmt: skip
    steps = dict(prior_num_inference_steps=2, decoder_num_inference_steps=2, super_res_num_inference_steps=2)
    return build_pipeline("UnCLIPPipeline", **parts), dict(prompt="a red circle", output_type="np", **steps)


def pixart_alpha() -> Made:
    parts = dict(vae=tiny.vae(), transformer=pixart.SPECIMEN.build(), scheduler=tiny.scheduler())
    text_mask = paddle.ones([1, tiny.TEXT_TOKENS])
    masks = dict(negative_prompt=None, prompt_attention_mask=text_mask, negative_prompt_attention_mask=text_mask)
    call = dict(**PROMPT_EMBEDS, **masks, height=32, width=48, use_resolution_binning=False, **ARRAYS)
    return build_pipeline("PixArtAlphaPipeline", **parts), call


def stable_diffusion_3() -> Made:
    pipe = build_pipeline(
        "StableDiffusion3Pipeline", transformer=sd3.SPECIMEN.build(), vae=tiny.vae(), tokenizer=load_tokenizer(),
        scheduler=ppdiffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    pooled, negative = (normal(1, sd3.POOLED_DIM, seed=seed) for seed in (0, 1))
    pooled = dict(pooled_prompt_embeds=pooled, negative_pooled_prompt_embeds=negative)
    return pipe, dict(**PROMPT_EMBEDS, **pooled, height=32, width=40, **LATENT)


def unidiffuser() -> Made:
    decoder = tiny.build(
        UniDiffuserTextDecoder, prefix_length=tiny.TEXT_TOKENS, prefix_inner_dim=tiny.CROSS_DIM, vocab_size=20,
        prefix_hidden_dim=tiny.CROSS_DIM, n_positions=16, n_embd=8, n_layer=1, n_head=2,
    )  # fmt: skip
    pipe = build_pipeline(
        "UniDiffuserPipeline", vae=tiny.vae(), text_encoder=tiny.text_encoder(), text_decoder=decoder,
        unet=zoo_unidiffuser.SPECIMEN.build(), scheduler=tiny.scheduler(),
        image_encoder=image_encoder(projection=zoo_unidiffuser.IMAGE_DIM),
    )  # fmt: skip
    return pipe, dict(prompt_embeds=tiny.text(1), **ARRAYS)


def wuerstchen() -> Made:
    pipe = build_pipeline(
        "WuerstchenPriorPipeline", text_encoder=tiny.text_encoder(), resolution_multiple=2.0,
        prior=wuerstchen_prior.SPECIMEN.build(), scheduler=ppdiffusers.DDPMWuerstchenScheduler(),
    )  # fmt: skip
    return pipe, dict(**PROMPT_EMBEDS, height=32, width=24, num_inference_steps=2)


def build_unconditional(name: str, scheduler: str, unet: Any = None) -> Any:
    unet = unet or unconditional.SPECIMEN.build()
    return build_pipeline(name, unet=unet, scheduler=getattr(ppdiffusers, scheduler)())


CASES: dict[str, Callable[[], Made]] = {
    "text_to_image": lambda: (build_sd("StableDiffusionPipeline"), dict(**PROMPT_EMBEDS, **LATENT, **SIZE)),
    "img2img": lambda: (
        build_sd("StableDiffusionImg2ImgPipeline"), dict(image=rgb(), strength=0.8, **PROMPT_EMBEDS, **LATENT)
    ),
    "inpaint": lambda: (
        build_sd("StableDiffusionInpaintPipeline", unet=tiny.unet(in_channels=9)),
        dict(image=rgb(), mask_image=mask(), **PROMPT_EMBEDS, **LATENT, **SIZE),
    ),
    "upscale": upscale,
    "latent_consistency": lambda: (
        build_sd(
            "LatentConsistencyModelPipeline", unet=tiny.unet(time_cond_proj_dim=8),
            scheduler=ppdiffusers.LCMScheduler(),
        ),
        dict(prompt_embeds=PROMPT_EMBEDS["prompt_embeds"], **LATENT, **SIZE),
    ),
    "panorama": panorama,
    "gligen_boxes": lambda: (
        build_sd("StableDiffusionGLIGENPipeline", unet=gligen.SPECIMEN.build(), **text_parts()),
        dict(gligen_phrases=["a circle"], gligen_boxes=[[0.1, 0.1, 0.6, 0.7]], **WORDS, **LATENT, **SIZE),
    ),
    "ip_adapter": ip_adapter,
    "controlnets": lambda: (
        build_sd("StableDiffusionControlNetPipeline", controlnet=[tiny.controlnet(), tiny.controlnet()]),
        dict(image=[rgb(), rgb(6)], **PROMPT_EMBEDS, **LATENT),
    ),
    "controlnet_img2img": lambda: (
        build_sd("StableDiffusionControlNetImg2ImgPipeline", controlnet=tiny.controlnet()),
        dict(image=rgb(), control_image=rgb(6), **PROMPT_EMBEDS, **LATENT),
    ),
    "sdxl_base": lambda: (build_sdxl("StableDiffusionXLPipeline"), dict(**SDXL_EMBEDS, **LATENT, **SIZE)),
    "sdxl_refiner": sdxl_refiner,
    "sdxl_inpaint": lambda: (
        build_sdxl("StableDiffusionXLInpaintPipeline"),
        dict(image=rgb(), mask_image=mask(), strength=0.9, **SDXL_EMBEDS, **LATENT, **SIZE),
    ),
    "sdxl_controlnet": lambda: (
        build_sdxl("StableDiffusionXLControlNetPipeline", controlnet=controlnet_sdxl.SPECIMEN.build()),
        dict(image=rgb(), **SDXL_EMBEDS, **LATENT, **SIZE),
    ),
    "deepfloyd_if": deepfloyd_if,
    "kandinsky_v22": kandinsky_2_2,
    "unclip": unclip,
    "ddpm": lambda: (build_unconditional("DDPMPipeline", "DDPMScheduler"), ARRAYS),
    "pndm": lambda: (build_unconditional("PNDMPipeline", "PNDMScheduler"), dict(ARRAYS, num_inference_steps=4)),
    "consistency": lambda: (
        build_unconditional(
            "ConsistencyModelPipeline", "CMStochasticIterativeScheduler", unet_consistency.SPECIMEN.build()
        ),
        dict(class_labels=3, **ARRAYS),
    ),
    "dit": lambda: (
        build_pipeline(  # the number of no class is 1000
            "DiTPipeline", transformer=tiny.dit(num_embeds_ada_norm=1000), vae=tiny.vae(), scheduler=tiny.scheduler()
        ),
        dict(class_labels=[1], **ARRAYS),
    ),
    "pixart": pixart_alpha,
    "sd3": stable_diffusion_3,
    "unidiffuser": unidiffuser,
    "wuerstchen_prior": wuerstchen,
}  # fmt: skip
