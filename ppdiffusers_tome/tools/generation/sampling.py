"""Images that depend on their own seed alone, also in batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
import ppdiffusers

from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.tools.generation.class_labels import ClassLabels, compute_vae_scale

if TYPE_CHECKING:
    from PIL import Image


def get_class_labels(pipe: Any) -> ClassLabels | None:
    """Return the classes of a DiTPipeline; None for a pipeline with prompts."""
    return ClassLabels.from_pipeline(pipe) if isinstance(pipe, ppdiffusers.DiTPipeline) else None


def find_denoiser(pipe: Any) -> Any:
    """Find the model that predicts the noise of an image."""
    return next(model for name, model in list_models(pipe) if name in ("unet", "transformer"))


def get_native_size(pipe: Any) -> tuple[int, int]:
    """Return the height and width in pixels that a pipeline expects."""
    sample, scale = find_denoiser(pipe).config.sample_size, compute_vae_scale(pipe.vae.config)
    height, width = (sample, sample) if isinstance(sample, int) else sample
    return height * scale, width * scale


def make_initial_noise(pipe: Any, height: int, width: int, seed: int) -> paddle.Tensor:
    """Make noise ``[1, channels, latent height, latent width]`` from a seed."""
    scale, denoiser = compute_vae_scale(pipe.vae.config), find_denoiser(pipe)
    shape = (1, denoiser.config.in_channels, height // scale, width // scale)
    noise = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return paddle.to_tensor(noise).cast(denoiser.dtype)


def generate_image(
    pipe: Any, prompt: str, *, seed: int, negative_prompt: str | None = None, edges: Image.Image | None = None,
    **arguments: Any,
) -> Image.Image:  # fmt: skip
    """Generate one image; see ``generate_batch`` for the other arguments."""
    (image,) = generate_batch(
        pipe, [prompt], seeds=[seed], negative_prompts=None if negative_prompt is None else [negative_prompt],
        edges=None if edges is None else [edges], **arguments,
    )  # fmt: skip
    return image


def generate_batch(
    pipe: Any, prompts: Sequence[str], *, height: int, width: int, seeds: Sequence[int], steps: int,
    guidance_scale: float, negative_prompts: Sequence[str] | None = None, edges: Sequence[Image.Image] | None = None,
    controlnet_scale: float = 1.0, after_step: Callable[[], None] = lambda: None,
) -> list[Image.Image]:  # fmt: skip
    """Generate images in one batch, each from its own noise.

    Args:
        pipe: a text-to-image pipeline, with a ControlNet where ``edges`` are given; or a DiTPipeline.
        prompts: one for each image; of a DiTPipeline classes.
        height, width: in pixels, multiples of 8; of a DiTPipeline its own.
        seeds: of each image's initial noise and, with schedulers that add noise (``euler-a``), of that.
        steps, guidance_scale: as in ppdiffusers.
        negative_prompts: one for each image, or None.
        edges: one for each image, to guide the ControlNet; or None.
        controlnet_scale: how strongly they guide.
        after_step: called after every denoising step, before the images are decoded.
    """
    def report_step(*_: Any) -> dict[str, Any]:
        after_step()
        return {}

    labels = get_class_labels(pipe)
    noise = paddle.concat([make_initial_noise(pipe, height, width, seed) for seed in seeds])
    arguments: dict[str, Any] = {"num_inference_steps": steps, "guidance_scale": guidance_scale}
    with _separate_noise(pipe.scheduler, seeds):
        if labels is not None:
            classes = [labels.find_class(prompt) for prompt in prompts]
            return _generate_classes(pipe, noise, after_step, class_labels=classes, **arguments)
        if edges is not None:
            arguments |= {"image": edges, "controlnet_conditioning_scale": float(controlnet_scale)}
        return pipe(
            prompt=list(prompts), negative_prompt=negative_prompts, height=height, width=width, latents=noise,
            callback_on_step_end=report_step, **arguments,
        ).images  # fmt: skip


def _generate_classes(
    pipe: Any, noise: paddle.Tensor, after_step: Callable[[], None], **arguments: Any
) -> list[Image.Image]:
    """Generate with a DiTPipeline, which has no ``latents`` and callbacks."""
    hook = pipe.transformer.register_forward_post_hook(lambda *_: after_step())
    try:
        with _replace_randn(sys.modules[ppdiffusers.DiTPipeline.__module__], lambda *_, **__: noise):
            return pipe(**arguments).images
    finally:
        hook.remove()


@contextmanager
def _separate_noise(scheduler: Any, seeds: Sequence[int]) -> Iterator[None]:
    """Give each image the scheduler's noise of its own seed.

    ppdiffusers takes a list of generators for that, which works on GPUs only. Here the scheduler's module makes its
    noise image by image, each from its own state of the global generator.
    """
    module = sys.modules[type(scheduler).__module__]
    states = []
    for seed in seeds:
        paddle.seed(seed)
        states.append(paddle.get_rng_state())
    randn: Any = getattr(module, "randn_tensor", None)
    if randn is None:
        yield
        return

    def make_noise(shape: Sequence[int], *_: Any, dtype: Any = None, **__: Any) -> paddle.Tensor:
        rows = []
        for index, state in enumerate(states):
            paddle.set_rng_state(state)
            rows.append(randn([1, *shape[1:]], dtype=dtype))
            states[index] = paddle.get_rng_state()
        # With guidance a DiTPipeline steps both halves and continues with the first.
        return paddle.concat(rows * (shape[0] // len(states)))

    with _replace_randn(module, make_noise):
        yield


@contextmanager
def _replace_randn(module: Any, function: Callable[..., paddle.Tensor]) -> Iterator[None]:
    """Replace the function by which a module of ppdiffusers makes noise."""
    previous = module.randn_tensor
    module.randn_tensor = function
    try:
        yield
    finally:
        module.randn_tensor = previous
