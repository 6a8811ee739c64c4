"""One picture from a pipeline, the same for the same seed whatever else is drawn and whether tokens merge or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

if TYPE_CHECKING:
    from PIL import Image


def native_size(pipe: Any) -> tuple[int, int]:
    """Height and width in pixels that a pipeline's UNet was made for."""
    sample = pipe.unet.config.sample_size
    height, width = (sample, sample) if isinstance(sample, int) else sample
    return height * pipe.vae_scale_factor, width * pipe.vae_scale_factor


def initial_noise(pipe: Any, height: int, width: int, seed: int) -> paddle.Tensor:
    """Gaussian noise ``[1, channels, height / 8, width / 8]`` that depends on the seed and the size alone."""
    scale = pipe.vae_scale_factor
    channels = pipe.unet.config.in_channels
    noise = np.random.default_rng(seed).standard_normal((1, channels, height // scale, width // scale), np.float32)
    return paddle.to_tensor(noise).cast(pipe.unet.dtype)


def draw(
    pipe: Any,
    prompt: str,
    *,
    height: int,
    width: int,
    seed: int,
    steps: int,
    guidance_scale: float,
    negative_prompt: str | None = None,
    edges: Image.Image | None = None,
    controlnet_scale: float = 1.0,
    after_step: Callable[[], None] = lambda: None,
) -> Image.Image:
    """Draw one picture.

    Args:
        pipe: a text-to-image pipeline; with a ControlNet when ``edges`` are given.
        prompt, negative_prompt: what to draw, and what not.
        height, width: in pixels, multiples of 8.
        seed: of the initial noise and, with schedulers that add noise on the way (``euler-a``), of that.
        steps, guidance_scale: as in ppdiffusers.
        edges: picture that guides the ControlNet.
        controlnet_scale: how strongly it does.
        after_step: called after every denoising step, before the picture is decoded.
    """

    def step_ended(*_: Any) -> dict[str, Any]:
        after_step()
        return {}

    paddle.seed(seed)
    control = {} if edges is None else {"image": edges, "controlnet_conditioning_scale": float(controlnet_scale)}
    return pipe(
        prompt=prompt,
        negative_prompt=negative_prompt,
        height=height,
        width=width,
        num_inference_steps=steps,
        guidance_scale=guidance_scale,
        latents=initial_noise(pipe, height, width, seed),
        callback_on_step_end=step_ended,
        **control,
    ).images[0]
