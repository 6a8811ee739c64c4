"""Pipelines of video and sound, and what each is called with."""

from typing import Any

import numpy as np
import paddle
import ppdiffusers
from ppdiffusers import transformers

import tiny
from pipelines.whole import Made, build_pipeline, image_encoder
from zoo import audioldm, audioldm2, unet_3d, unet_spatio_temporal

STEPS, FRAMES = 2, 3
# What a video is made of by a text.
VIDEO: dict[str, Any] = dict(
    num_inference_steps=STEPS, **tiny.PROMPT_EMBEDS, num_frames=FRAMES, height=32, width=32,
    latents=tiny.smooth_image(1, 4, FRAMES, 16, 16), output_type="latent",
)  # fmt: skip


def stable_diffusion_parts() -> dict[str, Any]:
    return dict(vae=tiny.vae(), text_encoder=tiny.text_encoder(), scheduler=tiny.scheduler())


def animatediff() -> Made:
    adapter = tiny.build(
        ppdiffusers.MotionAdapter, block_out_channels=(8, 16), motion_layers_per_block=1, motion_norm_num_groups=4,
        motion_num_attention_heads=2, motion_max_seq_length=8,
    )  # fmt: skip
    parts = dict(unet=tiny.unet(), motion_adapter=adapter, **stable_diffusion_parts())
    return build_pipeline("AnimateDiffPipeline", **parts), VIDEO


def text_to_video() -> Made:
    return build_pipeline("TextToVideoSDPipeline", unet=unet_3d.SPECIMEN.build(), **stable_diffusion_parts()), VIDEO


def video_to_video() -> Made:
    pipe = build_pipeline("VideoToVideoSDPipeline", unet=unet_3d.SPECIMEN.build(), **stable_diffusion_parts())
    video = [np.full((32, 32, 3), 80 * frame, np.uint8) for frame in range(FRAMES)]
    given = dict(video=video, strength=0.5, output_type="latent")
    return pipe, dict(num_inference_steps=2 * STEPS, **tiny.PROMPT_EMBEDS, **given)


def stable_video_diffusion() -> Made:
    vae = tiny.build(
        ppdiffusers.AutoencoderKLTemporalDecoder, block_out_channels=(32, 32), latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
    )  # fmt: skip
    pipe = build_pipeline(
        "StableVideoDiffusionPipeline", vae=vae, image_encoder=image_encoder(32, 8),
        unet=unet_spatio_temporal.SPECIMEN.build(),
        scheduler=ppdiffusers.EulerDiscreteScheduler(prediction_type="v_prediction"),
    )  # fmt: skip
    image = tiny.smooth_image(1, 3, 32, 32).clip(-1, 1)
    given = dict(image=image, height=32, width=32, num_frames=FRAMES, output_type="latent")
    return pipe, dict(num_inference_steps=STEPS, **given)


def sound_parts() -> dict[str, Any]:
    config = transformers.SpeechT5HifiGanConfig(
        model_in_dim=16, sampling_rate=16000, upsample_initial_channel=16, upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
        normalize_before=False,
    )  # fmt: skip
    vocoder = tiny.build(transformers.SpeechT5HifiGan, config=config)
    vae = tiny.vae(in_channels=1, out_channels=1)
    return dict(vae=vae, scheduler=tiny.scheduler(), vocoder=vocoder)


def clap() -> paddle.nn.Layer:
    config = transformers.ClapTextConfig(
        vocab_size=20, hidden_size=12, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, projection_dim=tiny.CROSS_DIM,
    )  # fmt: skip
    return tiny.build(transformers.ClapTextModelWithProjection, config=config)


def sound_prompt(*shape: int) -> dict[str, Any]:
    return dict(prompt_embeds=tiny.array(shape, seed=2), negative_prompt_embeds=tiny.array(shape, seed=3))


def audio_ldm() -> Made:
    pipe = build_pipeline("AudioLDMPipeline", text_encoder=clap(), unet=audioldm.SPECIMEN.build(), **sound_parts())
    given = dict(**sound_prompt(1, tiny.CROSS_DIM), latents=tiny.smooth_image(1, 4, 16, 8))
    return pipe, dict(num_inference_steps=STEPS, **given)


def audio_ldm_2() -> Made:
    t5 = transformers.T5Config(d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=20)
    gpt2 = transformers.GPT2Config(n_embd=10, n_layer=1, n_head=2, n_positions=16, n_ctx=16, vocab_size=20)
    pipe = build_pipeline(
        "AudioLDM2Pipeline", text_encoder_2=tiny.build(transformers.T5EncoderModel, config=t5),
        language_model=tiny.build(transformers.GPT2Model, config=gpt2), unet=audioldm2.SPECIMEN.build(),
        **sound_parts(),
    )  # fmt: skip
    given = dict(
        **sound_prompt(1, 5, tiny.CROSS_DIM),
        generated_prompt_embeds=tiny.array((1, 4, audioldm2.GENERATED_DIM), seed=4),
        negative_generated_prompt_embeds=tiny.array((1, 4, audioldm2.GENERATED_DIM), seed=5),
        attention_mask=paddle.ones([1, 5], dtype="int64"), negative_attention_mask=paddle.ones([1, 5], dtype="int64"),
        latents=tiny.smooth_image(1, 4, 16, 8), output_type="latent",
    )  # fmt: skip
    return pipe, dict(num_inference_steps=STEPS, **given)


PIPELINES = (animatediff, text_to_video, video_to_video, stable_video_diffusion, audio_ldm, audio_ldm_2)
CASES = {make.__name__: make for make in PIPELINES}
