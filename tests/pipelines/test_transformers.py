"""Whole pipelines around transformers and older UNets: they merge, stay finite, and are as before once removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import ppdiffusers
import pytest
from ppdiffusers import FlowMatchEulerDiscreteScheduler
from ppdiffusers.pipelines.unidiffuser import UniDiffuserTextDecoder

import tiny
from pipelines.whole import check_merging, image_encoder, load_tokenizer, start
from zoo import pixart, sd3, unidiffuser, wuerstchen_prior

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


def build_wuerstchen_prior() -> Any:
    return ppdiffusers.WuerstchenPriorPipeline(
        tokenizer=None, text_encoder=tiny.text_encoder(), prior=wuerstchen_prior.SPECIMEN.build(),
        resolution_multiple=2.0, scheduler=ppdiffusers.DDPMWuerstchenScheduler(),
    )  # fmt: skip


TEXTS: dict[str, Any] = tiny.PROMPT
MASK = paddle.ones([1, TEXT_TOKENS])
MASKS = dict(negative_prompt=None, prompt_attention_mask=MASK, negative_prompt_attention_mask=MASK)
POOLED = dict(
    pooled_prompt_embeds=tiny.array((1, sd3.POOLED_DIM)),
    negative_pooled_prompt_embeds=tiny.array((1, sd3.POOLED_DIM), seed=1),
)
LATENT, IMAGE = dict(output_type="latent"), dict(output_type="np")
# How a pipeline is built, what it is called with besides the number of steps, and how many blocks merge.
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], int]] = {
    "dit": (build_dit, dict(class_labels=[1], **IMAGE), 2),
    "pixart": (build_pixart, dict(**TEXTS, **MASKS, height=32, width=48, use_resolution_binning=False, **IMAGE), 2),
    "sd3": (build_sd3, dict(**TEXTS, **POOLED, height=32, width=40, **LATENT), 2),
    "unidiffuser": (build_unidiffuser, dict(prompt_embeds=tiny.text(1), **IMAGE), 3),
    "wuerstchen_prior": (build_wuerstchen_prior, dict(**TEXTS, height=32, width=24), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pipeline_merges_and_comes_back(name: str) -> None:
    build, call, blocks = CASES[name]
    pipe, draw = start(lambda: (build(), dict(call, num_inference_steps=2)))
    check_merging(pipe, draw)
    assert pipe.apply_tome(ratio=0.5).tome.num_blocks == blocks
