"""Images that depend on their seed alone, and schedulers that can run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
import ppdiffusers

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tools.console.output import warn
from ppdiffusers_tome.tools.generation.prompts import ClassLabels

if TYPE_CHECKING:
    from PIL import Image


def get_labels(pipe: Any) -> ClassLabels | None:
    """Return the classes of a DiTPipeline; None for a pipeline with prompts."""
    if not isinstance(pipe, ppdiffusers.DiTPipeline):
        return None
    names = {name: number for name, number in pipe.labels.items() if name}
    return ClassLabels(names, pipe.transformer.config["num_embeds_ada_norm"])


def find_denoiser(pipe: Any) -> Any:
    """Find the model that predicts the noise of an image."""
    return next(model for name, model in list_models(pipe) if name in ("unet", "transformer"))


def get_native_size(pipe: Any) -> tuple[int, int]:
    """Return the height and width in pixels that a pipeline expects."""
    sample, scale = find_denoiser(pipe).config.sample_size, _compute_vae_scale(pipe)
    height, width = (sample, sample) if isinstance(sample, int) else sample
    return height * scale, width * scale


def _compute_vae_scale(pipe: Any) -> int:
    """Compute how many times smaller than the image its latent is."""
    return 2 ** (len(pipe.vae.config["block_out_channels"]) - 1)


def check_scheduler(scheduler: Any, steps: int, *, may_scale: bool = True) -> None:
    """Check on a tiny latent that a scheduler can run; leave it unchanged.

    ppdiffusers 0.29's UniPC, for example, fails on Paddle 3, and PNDM in a single step. ``may_scale`` is False for a
    DiTPipeline, which is wrong with schedulers that scale latents for the model: it goes on with the scaled ones.
    """
    name, trial = type(scheduler).__name__, type(scheduler).from_config(scheduler.config)
    latent = paddle.ones([1, 4, 2, 2])
    try:
        trial.set_timesteps(steps)
        scaled = trial.scale_model_input(latent, trial.timesteps[0])
        if not may_scale and (scaled != latent).any():
            raise ValueError("it scales the latents, and a DiTPipeline would continue with the scaled ones")
        for timestep in trial.timesteps:
            latent = trial.step(trial.scale_model_input(latent, timestep) * 0, timestep, latent).prev_sample
    except Exception as error:  # of ppdiffusers or Paddle
        reason, many = " ".join(str(error).split())[:120], format_count(steps, "step")
        raise UserError(
            f"the model's {name} cannot run {many} here ({type(error).__name__}: {reason}); give another --scheduler, "
            "such as ddim or dpmsolver++, or other --steps"
        ) from error


def make_initial_noise(pipe: Any, height: int, width: int, seed: int) -> paddle.Tensor:
    """Make noise ``[1, channels, latent height, latent width]`` from a seed."""
    scale, denoiser = _compute_vae_scale(pipe), find_denoiser(pipe)
    shape = (1, denoiser.config.in_channels, height // scale, width // scale)
    noise = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return paddle.to_tensor(noise).cast(denoiser.dtype)


def generate_image(
    pipe: Any, prompt: str, *, height: int, width: int, seed: int, steps: int, guidance_scale: float,
    negative_prompt: str | None = None, edges: Image.Image | None = None, controlnet_scale: float = 1.0,
    after_step: Callable[[], None] = lambda: None,
) -> Image.Image:  # fmt: skip
    """Generate an image from its own noise.

    Args:
        pipe: a text-to-image pipeline, with a ControlNet where ``edges`` are given; or a DiTPipeline.
        prompt: of a DiTPipeline a class.
        height, width: in pixels, multiples of 8; of a DiTPipeline its own.
        seed: of the initial noise and, with schedulers that add noise (``euler-a``), of that.
        after_step: called after every call of the denoiser, before the image is decoded.
    """
    def report_step(*_: Any) -> dict[str, Any]:
        after_step()
        return {}

    labels, noise = get_labels(pipe), make_initial_noise(pipe, height, width, seed)
    paddle.seed(seed)
    arguments: dict[str, Any] = {"num_inference_steps": steps, "guidance_scale": guidance_scale}
    if labels is not None:
        return _generate_class(pipe, noise, after_step, class_labels=[labels.find_class(prompt)], **arguments)
    if edges is not None:
        arguments |= {"image": edges, "controlnet_conditioning_scale": float(controlnet_scale)}
    output = pipe(
        prompt=prompt, negative_prompt=negative_prompt, height=height, width=width, latents=noise,
        callback_on_step_end=report_step, **arguments,
    )  # fmt: skip
    if any(getattr(output, "nsfw_content_detected", None) or ()):
        warn("the model's safety checker took the image for unsafe and made it black; give another prompt or --seed")
    return output.images[0]


def _generate_class(pipe: Any, noise: paddle.Tensor, after_step: Callable[[], None], **arguments: Any) -> Image.Image:
    """Generate with a DiTPipeline, which has no ``latents`` and callbacks."""
    hook = pipe.transformer.register_forward_post_hook(lambda *_: after_step())
    module: Any = sys.modules[ppdiffusers.DiTPipeline.__module__]
    make_noise, module.randn_tensor = module.randn_tensor, lambda *_, **__: noise
    try:
        return pipe(**arguments).images[0]
    finally:
        module.randn_tensor = make_noise
        hook.remove()
