"""Pictures from a pipeline, the same for the same seed whatever else is drawn and whether tokens merge or not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
import ppdiffusers

from ppdiffusers_tome.tools.generation.class_labels import ClassLabels, compute_vae_scale

if TYPE_CHECKING:
    from PIL import Image


def get_class_labels(pipe: Any) -> ClassLabels | None:
    """What a pipeline draws in place of prompts; None for one that takes prompts."""
    return ClassLabels.from_pipeline(pipe) if isinstance(pipe, ppdiffusers.DiTPipeline) else None


def get_native_size(pipe: Any) -> tuple[int, int]:
    """Height and width in pixels that a pipeline's denoiser was made for."""
    sample, scale = _denoiser(pipe).config.sample_size, compute_vae_scale(pipe.vae.config)
    height, width = (sample, sample) if isinstance(sample, int) else sample
    return height * scale, width * scale


def make_initial_noise(pipe: Any, height: int, width: int, seed: int) -> paddle.Tensor:
    """Gaussian noise ``[1, channels, height / 8, width / 8]`` that depends on the seed and the size alone."""
    scale, denoiser = compute_vae_scale(pipe.vae.config), _denoiser(pipe)
    channels = denoiser.config.in_channels
    noise = np.random.default_rng(seed).standard_normal((1, channels, height // scale, width // scale), np.float32)
    return paddle.to_tensor(noise).cast(denoiser.dtype)


def _denoiser(pipe: Any) -> Any:
    unet = getattr(pipe, "unet", None)
    return pipe.transformer if unet is None else unet


def generate_image(
    pipe: Any, prompt: str, *, seed: int, negative_prompt: str | None = None, edges: Image.Image | None = None,
    **drawing: Any,
) -> Image.Image:  # fmt: skip
    """Draw one picture; ``drawing`` is what else ``generate_batch`` takes."""
    negative_prompts = None if negative_prompt is None else [negative_prompt]
    (picture,) = generate_batch(
        pipe, [prompt], seeds=[seed], negative_prompts=negative_prompts, edges=None if edges is None else [edges],
        **drawing,
    )  # fmt: skip
    return picture


def generate_batch(
    pipe: Any,
    prompts: Sequence[str],
    *,
    height: int,
    width: int,
    seeds: Sequence[int],
    steps: int,
    guidance_scale: float,
    negative_prompts: Sequence[str] | None = None,
    edges: Sequence[Image.Image] | None = None,
    controlnet_scale: float = 1.0,
    after_step: Callable[[], None] = lambda: None,
) -> list[Image.Image]:
    """Draw pictures in one batch, each from the noise that it has when drawn alone.

    Args:
        pipe: a text-to-image pipeline; with a ControlNet when ``edges`` are given. Or a DiTPipeline.
        prompts, negative_prompts: what to draw, and what not, one for every picture; or no negative ones. Of a
            DiTPipeline a class each, and no negative ones.
        height, width: in pixels, multiples of 8; of a DiTPipeline its own.
        seeds: of each picture's initial noise and, with schedulers that add noise on the way (``euler-a``), of that.
        steps, guidance_scale: as in ppdiffusers.
        edges: pictures that guide the ControlNet.
        controlnet_scale: how strongly they do.
        after_step: called after every denoising step, before the pictures are decoded.

    Raises:
        UserError: a DiTPipeline has no such class or size, or takes nothing like that.
    """
    labels = get_class_labels(pipe)
    if labels is not None:
        others = {"a negative prompt": negative_prompts, "a picture of edges": edges}
        labels.check_arguments(others, height, width, guidance_scale)
        numbers = [labels.find_class(prompt) for prompt in prompts]
        return _draw_classes(pipe, numbers, labels.image_size, seeds, steps, guidance_scale, after_step)

    def step_ended(*_: Any) -> dict[str, Any]:
        after_step()
        return {}

    alone = len(prompts) == 1

    def given(values: Sequence[Any]) -> Any:
        return values[0] if alone else list(values)

    control = {}
    if edges is not None:
        control = {"image": given(edges), "controlnet_conditioning_scale": float(controlnet_scale)}
    noise = paddle.concat([make_initial_noise(pipe, height, width, seed) for seed in seeds])
    paddle.seed(seeds[0])
    with nullcontext() if alone else _own_noise(pipe.scheduler, seeds):
        return pipe(
            prompt=given(prompts), negative_prompt=None if negative_prompts is None else given(negative_prompts),
            height=height, width=width, num_inference_steps=steps, guidance_scale=guidance_scale, latents=noise,
            callback_on_step_end=step_ended, **control,
        ).images  # fmt: skip



def _draw_classes(
    pipe: Any, numbers: list[int], side: int, seeds: Sequence[int], steps: int, guidance_scale: float,
    after_step: Callable[[], None],
) -> list[Image.Image]:  # fmt: skip
    """A DiTPipeline draws its first noise itself, and calls nobody back."""
    noise = paddle.concat([make_initial_noise(pipe, side, side, seed) for seed in seeds])

    def step_ended(*_: Any) -> None:
        after_step()

    module = sys.modules[ppdiffusers.DiTPipeline.__module__]
    listening = pipe.transformer.register_forward_post_hook(step_ended)
    try:
        with _own_noise(pipe.scheduler, seeds), _noise_of(module, lambda *_, **__: noise):
            return pipe(class_labels=numbers, num_inference_steps=steps, guidance_scale=guidance_scale).images
    finally:
        listening.remove()


@contextmanager
def _own_noise(scheduler: Any, seeds: Sequence[int]) -> Iterator[None]:
    """Schedulers that add noise on the way give each picture of a batch that of its own seed.

    ppdiffusers takes a list of generators for that, which works on GPUs only. So for this long the function by which
    the scheduler's module draws noise draws it picture by picture, each from its own state of the global generator.
    """
    module = sys.modules[type(scheduler).__module__]
    drawing: Any = getattr(module, "randn_tensor", None)
    if drawing is None:
        yield
        return
    states = []
    for seed in seeds:
        paddle.seed(seed)
        states.append(paddle.get_rng_state())

    def draw_each(shape: Sequence[int], *_: Any, dtype: Any = None, **__: Any) -> paddle.Tensor:
        rows = []
        for index, state in enumerate(states):
            paddle.set_rng_state(state)
            rows.append(drawing([1, *shape[1:]], dtype=dtype))
            states[index] = paddle.get_rng_state()
        # With guidance a DiTPipeline steps both halves, of which it goes on with the first.
        return paddle.concat(rows * (shape[0] // len(states)))

    with _noise_of(module, draw_each):
        yield


@contextmanager
def _noise_of(module: Any, drawing: Callable[..., paddle.Tensor]) -> Iterator[None]:
    """For this long ``drawing`` is what a module of ppdiffusers draws its noise with."""
    before = module.randn_tensor
    module.randn_tensor = drawing
    try:
        yield
    finally:
        module.randn_tensor = before
