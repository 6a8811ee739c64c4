"""Whole pipelines around transformers and older UNets: they merge, stay finite, and are as before once removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import ppdiffusers
import pytest
from PIL import Image
from ppdiffusers import FlowMatchEulerDiscreteScheduler, VQModel
from ppdiffusers.pipelines.latent_diffusion import LDMTextToImageUViTPipeline
from ppdiffusers.pipelines.paint_by_example import PaintByExampleImageEncoder
from ppdiffusers.pipelines.unidiffuser import UniDiffuserTextDecoder
from ppdiffusers.pipelines.versatile_diffusion.modeling_text_unet import UNetFlatConditionModel
from ppdiffusers.pipelines.vq_diffusion.pipeline_vq_diffusion import LearnedClassifierFreeSamplingEmbeddings
from ppdiffusers.pipelines.wuerstchen import PaellaVQModel
from ppdiffusers.transformers import CLIPImageProcessor

import tiny
from pipelines.whole import build_text_encoder, check_merging, image_encoder, load_tokenizer, start, text_parts
from zoo import pixart, sd3, unidiffuser, uvit, vq_diffusion, wuerstchen_decoder, wuerstchen_prior

DIM, TEXT_TOKENS = tiny.CROSS_DIM, tiny.TEXT_TOKENS
PROMPT = "a cat"


def build_dit() -> Any:
    transformer = tiny.dit(num_embeds_ada_norm=1000)  # the number of no class is 1000
    return ppdiffusers.DiTPipeline(transformer=transformer, vae=tiny.vae(), scheduler=tiny.scheduler())


def build_pixart() -> Any:
    return ppdiffusers.PixArtAlphaPipeline(
        tokenizer=None, text_encoder=None, vae=tiny.vae(), transformer=pixart.SPECIMEN.build(),
        scheduler=tiny.scheduler(),
    )  # fmt: skip


def build_sd3() -> Any:
    return ppdiffusers.StableDiffusion3Pipeline(
        transformer=sd3.SPECIMEN.build(), scheduler=FlowMatchEulerDiscreteScheduler(), vae=tiny.vae(),
        text_encoder=None, tokenizer=load_tokenizer(), text_encoder_2=None, tokenizer_2=None, text_encoder_3=None,
        tokenizer_3=None,
    )  # fmt: skip


def build_unidiffuser() -> Any:
    decoder = tiny.build(
        UniDiffuserTextDecoder, prefix_length=TEXT_TOKENS, prefix_inner_dim=DIM, prefix_hidden_dim=DIM, vocab_size=20,
        n_positions=16, n_embd=8, n_layer=1, n_head=2,
    )  # fmt: skip
    return ppdiffusers.UniDiffuserPipeline(
        vae=tiny.vae(), text_encoder=tiny.text_encoder(), image_processor=None, clip_tokenizer=None,
        text_decoder=decoder, image_encoder=image_encoder(projection=unidiffuser.IMAGE_DIM), text_tokenizer=None,
        unet=unidiffuser.SPECIMEN.build(), scheduler=tiny.scheduler(),
    )  # fmt: skip


def build_vq_diffusion() -> Any:
    vqvae = tiny.build(
        VQModel, block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4, vq_embed_dim=4,
        num_vq_embeddings=vq_diffusion.CLASSES - 1, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    return ppdiffusers.VQDiffusionPipeline(
        vqvae=vqvae, **text_parts(), transformer=vq_diffusion.SPECIMEN.build(),
        scheduler=ppdiffusers.VQDiffusionScheduler(num_vec_classes=vq_diffusion.CLASSES),
        learned_classifier_free_sampling_embeddings=LearnedClassifierFreeSamplingEmbeddings(learnable=False),
    )  # fmt: skip


def text_unet() -> tiny.Model:
    """Versatile Diffusion's UNet over text, of the same shape as the one over images."""
    return tiny.build(
        UNetFlatConditionModel, sample_size=16, in_channels=4, out_channels=4, block_out_channels=(8, 16),
        layers_per_block=1, down_block_types=("CrossAttnDownBlockFlat",) * 2,
        up_block_types=("CrossAttnUpBlockFlat",) * 2, cross_attention_dim=DIM, attention_head_dim=2, norm_num_groups=4,
    )  # fmt: skip


# It takes 77 tokens of text and 257 of an image, whatever its encoders are.
def build_versatile_dual() -> Any:
    return ppdiffusers.VersatileDiffusionDualGuidedPipeline(
        tokenizer=load_tokenizer(model_max_length=77),
        text_encoder=build_text_encoder("CLIPTextModelWithProjection", max_position_embeddings=77),
        image_encoder=image_encoder(32, 2), image_unet=tiny.unet(),
        image_feature_extractor=CLIPImageProcessor(size=32, crop_size=32), text_unet=text_unet(), vae=tiny.vae(),
        scheduler=tiny.scheduler(),
    )  # fmt: skip


def build_wuerstchen_prior() -> Any:
    return ppdiffusers.WuerstchenPriorPipeline(
        tokenizer=None, text_encoder=tiny.text_encoder(), prior=wuerstchen_prior.SPECIMEN.build(),
        resolution_multiple=2.0, scheduler=ppdiffusers.DDPMWuerstchenScheduler(),
    )  # fmt: skip


def build_wuerstchen_decoder() -> Any:
    vqgan = tiny.build(PaellaVQModel, bottleneck_blocks=1, embed_dim=8, num_vq_embeddings=8)
    return ppdiffusers.WuerstchenDecoderPipeline(
        **text_parts(), decoder=wuerstchen_decoder.SPECIMEN.build(), vqgan=vqgan,
        scheduler=ppdiffusers.DDPMWuerstchenScheduler(),
    )  # fmt: skip


def build_uvit() -> Any:
    return LDMTextToImageUViTPipeline(
        vqvae=tiny.vae(), **text_parts(), unet=uvit.SPECIMEN.build(), scheduler=tiny.scheduler()
    )  # fmt: skip


def build_paint() -> Any:
    # It has a BasicTransformerBlock for every five layers, counting one more than there are.
    encoder = image_encoder(layers=4, kind=PaintByExampleImageEncoder, proj_size=DIM)
    return ppdiffusers.PaintByExamplePipeline(
        vae=tiny.vae(), image_encoder=encoder, unet=tiny.unet(in_channels=9), scheduler=tiny.scheduler(),
        safety_checker=None, feature_extractor=None,
    )  # fmt: skip


TEXTS: dict[str, Any] = tiny.PROMPT
MASK = paddle.ones([1, TEXT_TOKENS])
MASKS = dict(negative_prompt=None, prompt_attention_mask=MASK, negative_prompt_attention_mask=MASK)
POOLED = dict(
    pooled_prompt_embeds=tiny.array((1, sd3.POOLED_DIM)),
    negative_pooled_prompt_embeds=tiny.array((1, sd3.POOLED_DIM), seed=1),
)
PAINTED = dict(
    example_image=tiny.array((1, 3, 16, 16)), image=tiny.array((1, 3, 32, 32), seed=1).clip(-1, 1),
    mask_image=paddle.nn.functional.pad(paddle.ones([1, 1, 16, 16]), [8, 8, 8, 8]),
)  # fmt: skip
LATENT, IMAGE = dict(output_type="latent"), dict(output_type="np")
# How a pipeline is built, what it is called with besides the number of steps, and how many blocks merge.
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], int]] = {
    "dit": (build_dit, dict(class_labels=[1], **IMAGE), 2),
    "pixart": (build_pixart, dict(**TEXTS, **MASKS, height=32, width=48, use_resolution_binning=False, **IMAGE), 2),
    "sd3": (build_sd3, dict(**TEXTS, **POOLED, height=32, width=40, **LATENT), 2),
    "unidiffuser": (build_unidiffuser, dict(prompt_embeds=tiny.text(1), **IMAGE), 3),
    "vq_diffusion": (build_vq_diffusion, dict(prompt=PROMPT, **IMAGE), 2),
    "versatile": (build_versatile_dual, dict(prompt=PROMPT, image=Image.new("RGB", (32, 32)), **LATENT), 6),
    "wuerstchen_prior": (build_wuerstchen_prior, dict(**TEXTS, height=32, width=24), 2),
    "wuerstchen_decoder": (
        build_wuerstchen_decoder,
        dict(
            image_embeddings=tiny.array((1, wuerstchen_decoder.EMBEDDING_CHANNELS, 3, 3)), prompt=PROMPT,
            guidance_scale=2.0, **IMAGE,
        ), 2,
    ),
    "uvit": (build_uvit, dict(prompt=None, **TEXTS, height=128, width=128, guidance_scale=3.0, **IMAGE), 3),
    "paint_by_example": (build_paint, dict(**PAINTED, **LATENT), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pipeline_merges_and_comes_back(name: str) -> None:
    build, call, blocks = CASES[name]
    pipe, draw = start(lambda: (build(), dict(call, num_inference_steps=2)))
    check_merging(pipe, draw)
    assert pipe.apply_tome(ratio=0.5).tome.num_blocks == blocks
