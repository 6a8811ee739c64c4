"""Whole pipelines around transformers and older UNets: they merge, stay finite, and are as before once removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from PIL import Image
from ppdiffusers import (
    FlowMatchEulerDiscreteScheduler,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3Pipeline,
    VQModel,
)
from ppdiffusers.pipelines.latent_diffusion import LDMBertConfig, LDMBertModel, LDMTextToImageUViTPipeline
from ppdiffusers.pipelines.paint_by_example import PaintByExampleImageEncoder
from ppdiffusers.pipelines.unidiffuser import UniDiffuserTextDecoder
from ppdiffusers.pipelines.versatile_diffusion.modeling_text_unet import UNetFlatConditionModel
from ppdiffusers.pipelines.vq_diffusion.pipeline_vq_diffusion import LearnedClassifierFreeSamplingEmbeddings
from ppdiffusers.pipelines.wuerstchen import PaellaVQModel
from ppdiffusers.transformers import CLIPImageProcessor, CLIPTokenizer

import tiny
from pipelines.whole import Draw, check_merging, image_encoder
from zoo import pixart, sd3, unidiffuser, uvit, vq_diffusion, wuerstchen_decoder, wuerstchen_prior
from zoo.specimen import keep_random_state

STEPS = 2
DIM, TEXT_TOKENS = tiny.CROSS_DIM, tiny.TEXT_TOKENS
PROMPT, PROJECTED = "a cat", "CLIPTextModelWithProjection"


def tokenizer(folder: Path, length: int = 8) -> CLIPTokenizer:
    """CLIP's, with a vocabulary of a few letters."""
    words = ["<|startoftext|>", "<|endoftext|>", *"act", *(f"{letter}</w>" for letter in "act")]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=length)


def prompt(dim: int = DIM, seed: int = 2) -> paddle.Tensor:
    return tiny.array((1, TEXT_TOKENS, dim), seed=seed)


@dataclass(frozen=True)
class Case:
    """A pipeline of tiny parts, what it is called with besides the number of steps, and how many blocks merge."""

    build: Callable[[Path], Any]
    call: dict[str, Any]
    blocks: int

    def start(self, folder: Path) -> tuple[Any, Draw]:
        pipe = self.build(folder)

        def draw() -> np.ndarray:
            with keep_random_state(), sd3.attention_anywhere():
                paddle.seed(0)
                output = pipe(**self.call, num_inference_steps=STEPS)
            return tiny.to_numpy(output.images if hasattr(output, "images") else output.image_embeddings)

        return pipe, draw


def build_dit(folder: Path) -> Any:
    transformer = tiny.dit(num_embeds_ada_norm=1000)  # the number of no class is 1000
    return ppdiffusers.DiTPipeline(transformer=transformer, vae=tiny.vae(), scheduler=tiny.scheduler())


def build_pixart(folder: Path) -> Any:
    return ppdiffusers.PixArtAlphaPipeline(
        tokenizer=None, text_encoder=None, vae=tiny.vae(), transformer=pixart.SPECIMEN.build(),
        scheduler=tiny.scheduler(),
    )  # fmt: skip


def build_sd3(cls: type, folder: Path) -> Any:
    return cls(
        transformer=sd3.SPECIMEN.build(), scheduler=FlowMatchEulerDiscreteScheduler(), vae=tiny.vae(),
        text_encoder=None, tokenizer=tokenizer(folder), text_encoder_2=None, tokenizer_2=None, text_encoder_3=None,
        tokenizer_3=None,
    )  # fmt: skip


def build_unidiffuser(folder: Path) -> Any:
    decoder = tiny.build(
        UniDiffuserTextDecoder, prefix_length=TEXT_TOKENS, prefix_inner_dim=DIM, prefix_hidden_dim=DIM, vocab_size=20,
        n_positions=16, n_embd=8, n_layer=1, n_head=2,
    )  # fmt: skip
    return ppdiffusers.UniDiffuserPipeline(
        vae=tiny.vae(), text_encoder=tiny.text_encoder(), image_processor=None, clip_tokenizer=None,
        text_decoder=decoder, image_encoder=image_encoder(projection=unidiffuser.IMAGE_DIM), text_tokenizer=None,
        unet=unidiffuser.SPECIMEN.build(), scheduler=tiny.scheduler(),
    )  # fmt: skip


def build_vq_diffusion(folder: Path) -> Any:
    vqvae = tiny.build(
        VQModel, block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4, vq_embed_dim=4,
        num_vq_embeddings=vq_diffusion.CLASSES - 1, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    return ppdiffusers.VQDiffusionPipeline(
        vqvae=vqvae, text_encoder=tiny.text_encoder(), tokenizer=tokenizer(folder),
        transformer=vq_diffusion.SPECIMEN.build(),
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


def build_versatile_text(folder: Path) -> Any:
    return ppdiffusers.VersatileDiffusionTextToImagePipeline(
        tokenizer=tokenizer(folder), text_encoder=tiny.text_encoder(PROJECTED), image_unet=tiny.unet(),
        text_unet=text_unet(), vae=tiny.vae(), scheduler=tiny.scheduler(),
    )  # fmt: skip


# It takes 77 tokens of text and 257 of an image, whatever its encoders are.
def build_versatile_dual(folder: Path) -> Any:
    return ppdiffusers.VersatileDiffusionDualGuidedPipeline(
        tokenizer=tokenizer(folder, 77), text_encoder=tiny.text_encoder(PROJECTED, max_position_embeddings=77),
        image_encoder=image_encoder(32, 2), image_unet=tiny.unet(),
        image_feature_extractor=CLIPImageProcessor(size=32, crop_size=32), text_unet=text_unet(), vae=tiny.vae(),
        scheduler=tiny.scheduler(),
    )  # fmt: skip


def build_wuerstchen_prior(folder: Path) -> Any:
    return ppdiffusers.WuerstchenPriorPipeline(
        tokenizer=None, text_encoder=tiny.text_encoder(), prior=wuerstchen_prior.SPECIMEN.build(),
        resolution_multiple=2.0, scheduler=ppdiffusers.DDPMWuerstchenScheduler(),
    )  # fmt: skip


def build_wuerstchen_decoder(folder: Path) -> Any:
    vqgan = tiny.build(PaellaVQModel, bottleneck_blocks=1, embed_dim=8, num_vq_embeddings=8)
    return ppdiffusers.WuerstchenDecoderPipeline(
        tokenizer=tokenizer(folder), text_encoder=tiny.text_encoder(), decoder=wuerstchen_decoder.SPECIMEN.build(),
        vqgan=vqgan, scheduler=ppdiffusers.DDPMWuerstchenScheduler(),
    )  # fmt: skip


def build_ldm(folder: Path) -> Any:
    config = LDMBertConfig(
        vocab_size=20, max_position_embeddings=8, encoder_layers=1, encoder_ffn_dim=16, encoder_attention_heads=2,
        head_dim=6, d_model=DIM,
    )  # fmt: skip
    return ppdiffusers.LDMTextToImagePipeline(
        vqvae=tiny.vae(), bert=tiny.build(LDMBertModel, config=config), tokenizer=tokenizer(folder), unet=tiny.unet(),
        scheduler=tiny.scheduler(),
    )  # fmt: skip


def build_uvit(folder: Path) -> Any:
    return LDMTextToImageUViTPipeline(
        vqvae=tiny.vae(), text_encoder=tiny.text_encoder(), tokenizer=tokenizer(folder), unet=uvit.SPECIMEN.build(),
        scheduler=tiny.scheduler(),
    )  # fmt: skip


def build_paint(folder: Path) -> Any:
    # It has a BasicTransformerBlock for every five layers, counting one more than there are.
    encoder = image_encoder(layers=4, kind=PaintByExampleImageEncoder, proj_size=DIM)
    return ppdiffusers.PaintByExamplePipeline(
        vae=tiny.vae(), image_encoder=encoder, unet=tiny.unet(in_channels=9), scheduler=tiny.scheduler(),
        safety_checker=None, feature_extractor=None,
    )  # fmt: skip


TEXT: dict[str, Any] = dict(prompt_embeds=prompt())
TEXTS: dict[str, Any] = dict(**TEXT, negative_prompt_embeds=prompt(seed=3))
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
# By the pipeline's class.
CASES = {
    "DiTPipeline": Case(build_dit, dict(class_labels=[1], **IMAGE), 2),
    "PixArtAlphaPipeline": Case(
        build_pixart, dict(**TEXTS, **MASKS, height=32, width=48, use_resolution_binning=False, **IMAGE), 2
    ),
    "StableDiffusion3Pipeline": Case(
        partial(build_sd3, StableDiffusion3Pipeline), dict(**TEXTS, **POOLED, height=32, width=40, **LATENT), 2
    ),
    "StableDiffusion3Img2ImgPipeline": Case(
        partial(build_sd3, StableDiffusion3Img2ImgPipeline),
        dict(**TEXTS, **POOLED, image=tiny.latent(1), strength=1.0, **LATENT), 2,
    ),
    "UniDiffuserPipeline": Case(build_unidiffuser, dict(**TEXT, **IMAGE), 3),
    "VQDiffusionPipeline": Case(build_vq_diffusion, dict(prompt=PROMPT, **IMAGE), 2),
    "VersatileDiffusionTextToImagePipeline": Case(build_versatile_text, dict(prompt=PROMPT, **LATENT), 3),
    "VersatileDiffusionDualGuidedPipeline": Case(
        build_versatile_dual, dict(prompt=PROMPT, image=Image.new("RGB", (32, 32)), **LATENT), 6
    ),
    "WuerstchenPriorPipeline": Case(build_wuerstchen_prior, dict(**TEXTS, height=32, width=24), 2),
    "WuerstchenDecoderPipeline": Case(
        build_wuerstchen_decoder,
        dict(
            image_embeddings=tiny.array((1, wuerstchen_decoder.EMBEDDING_CHANNELS, 3, 3)), prompt=PROMPT,
            guidance_scale=2.0, **IMAGE,
        ), 2,
    ),
    "LDMTextToImagePipeline": Case(
        build_ldm, dict(prompt=PROMPT, height=128, width=128, guidance_scale=3.0, **IMAGE), 3
    ),
    "LDMTextToImageUViTPipeline": Case(
        build_uvit, dict(prompt=None, **TEXTS, height=128, width=128, guidance_scale=3.0, **IMAGE), 3
    ),
    "PaintByExamplePipeline": Case(build_paint, dict(**PAINTED, **LATENT), 3),
}  # fmt: skip


# What ppdiffusers itself cannot run, by the version that cannot.
BROKEN = {("StableDiffusion3Img2ImgPipeline", "0.29.1"): "ppdiffusers 0.29.1 makes as many latents as it has steps"}


def skip_marks(name: str) -> list[pytest.MarkDecorator]:
    reason = BROKEN.get((name, ppdiffusers.__version__))
    return [pytest.mark.skip(reason)] if reason else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=skip_marks(name)) for name in CASES])
def test_pipeline_merges_and_comes_back(name: str, tmp_path: Path) -> None:
    pipe, draw = CASES[name].start(tmp_path)
    assert type(pipe).__name__ == name
    check_merging(pipe, draw)
    assert pipe.apply_tome(ratio=0.5).tome.num_blocks == CASES[name].blocks
