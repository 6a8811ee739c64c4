"""Tiny models and pipelines of ppdiffusers' own classes, with the same random weights always.

Weights are drawn by each parameter's name, and building moves no global generator, so the order of tests is free.
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
from paddle.nn import Layer
from ppdiffusers import Transformer2DModel
from ppdiffusers.pipelines.controlnet import MultiControlNetModel

from environment import python_path
from zoo.dit import SPECIMEN as DIT
from zoo.specimen import TEXT_DIM as CROSS_DIM
from zoo.specimen import TEXT_TOKENS, Inputs, create, normal, smooth_image
from zoo.unet import SPECIMEN as UNET

ROOT = Path(__file__).resolve().parents[1]
PHOTOGRAPHS, EMOJI, CONTROLNET = (ROOT / "examples/models" / name for name in ("photographs", "emoji", "controlnet"))
Call = Callable[..., np.ndarray]
# Settings with which all that can merge at two levels does.
MERGE_ALL: dict[str, Any] = dict(ratio=0.5, max_downsample=2, merge_crossattn=True, merge_mlp=True)


def build(cls: type, **settings: Any) -> Any:
    """Create a model, or copy the first of its kind in half the time."""
    try:
        hash(tuple(settings.items()))
    except TypeError:
        return create(cls, **settings)
    return copy.deepcopy(_first(cls, **settings))


@lru_cache(maxsize=None, typed=True)
def _first(cls: type, **settings: Any) -> Any:
    return create(cls, **settings)


def random_states() -> tuple[list[str], list[int]]:
    """Return the states of Paddle's and numpy's global generators."""
    # Paddle's state prints as its numbers; 3.3.1 prints an address among them.
    numbers = [number for number in str(paddle.get_rng_state()[0]).split() if not number.startswith("0x")]
    _, keys, position, *_ = np.random.get_state()
    return numbers, [*keys.tolist(), position]


def unet(levels: int = 2, **settings: Any) -> ppdiffusers.UNet2DConditionModel:
    """Build Stable Diffusion's shape: cross attention at every one of ``levels`` levels."""
    shape = dict(
        block_out_channels=(8, 16, 16, 16)[:levels], down_block_types=("CrossAttnDownBlock2D",) * levels,
        up_block_types=("CrossAttnUpBlock2D",) * levels,
    )  # fmt: skip
    return build(ppdiffusers.UNet2DConditionModel, **{**UNET.config, **shape, **settings})


def small_unet() -> ppdiffusers.UNet2DConditionModel:
    """Build a UNet of one level with three blocks that merge.

    Tracing a program takes long for each layer.
    """
    return unet(levels=1, mid_block_type=None)


def sdxl_unet() -> ppdiffusers.UNet2DConditionModel:
    """SDXL's shape: no attention at the finest level."""
    return unet(
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D")
    )


def controlnet(levels: int = 2) -> ppdiffusers.ControlNetModel:
    return build(
        ppdiffusers.ControlNetModel, in_channels=4, block_out_channels=(8, 16, 16, 16)[:levels], layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D",) * levels, conditioning_embedding_out_channels=(8, 16),
        cross_attention_dim=CROSS_DIM, attention_head_dim=2, norm_num_groups=4,
    )  # fmt: skip


def multi_controlnet() -> MultiControlNetModel:
    return MultiControlNetModel([controlnet(), controlnet()])


def dit(**settings: Any) -> Transformer2DModel:
    """DiT's shape: patches of two, the timestep embedded in every block's norm."""
    return build(Transformer2DModel, **{**DIT.config, **settings})


def vae(**settings: Any) -> ppdiffusers.AutoencoderKL:
    return build(
        ppdiffusers.AutoencoderKL, block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, **settings,
    )  # fmt: skip


def text_encoder(kind: str = "CLIPTextModel", **settings: Any) -> Layer:
    """Build one of CLIP's; ``kind`` is the name of its class."""
    from ppdiffusers import transformers

    shape = dict(
        vocab_size=20, hidden_size=CROSS_DIM, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8, projection_dim=CROSS_DIM,
    )  # fmt: skip
    return build(getattr(transformers, kind), config=transformers.CLIPTextConfig(**{**shape, **settings}))


def transformer(**settings: Any) -> Transformer2DModel:
    """Build a part of a UNet, a denoiser by an unused timestep layer."""
    shape = dict(num_attention_heads=2, attention_head_dim=4, in_channels=8, norm_num_groups=4)
    part = build(Transformer2DModel, **{**shape, "cross_attention_dim": CROSS_DIM, **settings})
    part.time_proj = paddle.nn.Identity()
    return part


def scheduler() -> ppdiffusers.DDIMScheduler:
    return ppdiffusers.DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1)


def pipeline(cls: type = ppdiffusers.StableDiffusionPipeline, **parts: Any) -> Any:
    """A text to image pipeline; give it ``controlnet=`` and the class that takes one."""
    defaults: dict[str, Any] = dict(
        vae=vae(), text_encoder=text_encoder(), tokenizer=None, unet=unet(), scheduler=scheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipe = cls(**{**defaults, **parts})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def load_photographs(cls: type = ppdiffusers.StableDiffusionPipeline, **parts: Any) -> Any:
    """Load the small model of photographs."""
    pipe = cls.from_pretrained(str(PHOTOGRAPHS), safety_checker=None, **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


class Positional(Layer):
    """A UNet that takes and returns plain tensors, as a program does.

    Paddle 2.6 does not trace a closure.
    """

    def __init__(self, unet: Layer) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: paddle.Tensor, timestep: paddle.Tensor, text: paddle.Tensor) -> paddle.Tensor:
        return self.unet(sample, timestep, text, return_dict=False)[0]


class Sampler(ppdiffusers.DiffusionPipeline):
    """Calls a denoiser at every timestep of a scheduler: ``call(denoiser, number, timestep)``."""

    def __init__(self, unet: Layer, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)

    @paddle.no_grad()
    def __call__(self, call: Call, steps: int = 12, begin: int = 0) -> list[np.ndarray]:
        self.scheduler.set_timesteps(steps)
        timesteps = enumerate(self.scheduler.timesteps.tolist())
        return [call(self.unet, number, timestep) for number, timestep in timesteps if number >= begin]


class Models(ppdiffusers.DiffusionPipeline):
    """Holds a list of models, no registered components, and has no scheduler."""

    def __init__(self, *models: Layer) -> None:
        super().__init__()
        self.models = list(models)

    def __call__(self, call: Callable[[Layer], Any]) -> list[Any]:
        return list(map(call, self.models))


def array(shape: tuple[int, ...], seed: int = 0) -> paddle.Tensor:
    """Normal numbers, float32, without any global generator."""
    return normal(*shape, seed=seed)


def latent(batch: int = 2, height: int = 16, width: int = 16) -> paddle.Tensor:
    """``[batch, 4, height, width]``; neighbours resemble each other, as in a real one."""
    return smooth_image(batch, 4, height, width)


@lru_cache
def text(batch: int = 2) -> paddle.Tensor:
    """Return the same tensor at every call, as a pipeline does in every step."""
    return array((batch, TEXT_TOKENS, CROSS_DIM), seed=2)


# Of an image, for pipelines.
PROMPT_EMBEDS: dict[str, Any] = dict(prompt_embeds=text(1), negative_prompt_embeds=array(text(1).shape, seed=4))


def keep_mask() -> paddle.Tensor:
    """Build a mask of self-attention on 16x16 tokens, 1 where one is seen."""
    keep = np.ones((2, 256), np.float32)
    keep[0, 100:140], keep[1, ::7] = 0, 0
    return paddle.to_tensor(keep)


class EqualCells(Inputs):
    """Latents of which two by two tokens of a patched grid are equal."""

    def image(self, *channels: int, scale: int = 1, seed: int = 0) -> paddle.Tensor:
        coarse = self.normal(*channels, self.height // 4, self.width // 4, seed=seed)
        return coarse.repeat_interleave(4, axis=-2).repeat_interleave(4, axis=-1)


def to_numpy(output: Any) -> np.ndarray:
    return output.numpy() if isinstance(output, paddle.Tensor) else np.asarray(output)


@paddle.no_grad()
def run_unet(
    model: Layer, batch: int = 2, height: int = 16, width: int = 16, timestep: Any = 500, **kwargs: Any
) -> np.ndarray:
    return model(latent(batch, height, width), timestep, text(batch), **kwargs).sample.numpy()


@paddle.no_grad()
def run_controlnet(
    model: Layer, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500
) -> np.ndarray:
    image = array((batch, 3, height * 2, width * 2), seed=3)
    down, _ = model(latent(batch, height, width), timestep, text(batch), image, return_dict=False)
    return np.concatenate([residual.numpy().ravel() for residual in down])


@paddle.no_grad()
def run_dit(model: Layer, batch: int = 2, height: int = 16, width: int = 16, timestep: float = 500) -> np.ndarray:
    steps = paddle.full([batch], timestep, dtype="float32")
    labels = paddle.arange(batch, dtype="int64")
    # A program returns no objects with attributes.
    return model(latent(batch, height, width), timestep=steps, class_labels=labels, return_dict=False)[0].numpy()


def run_pipeline(pipe: Any, steps: int = 2, **kwargs: Any) -> np.ndarray:
    """Latents of one image, with classifier-free guidance."""
    given = dict(latents=latent(1), num_inference_steps=steps, output_type="latent", height=32, width=32)
    return to_numpy(pipe(**PROMPT_EMBEDS, **given, **kwargs).images)


def snapshot(model: Layer) -> dict[str, Any]:
    """Return the class, attributes and nested containers of every layer, by path."""

    def describe(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: id(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [id(item) for item in value]
        return id(value)

    return {
        # Paddle itself marks a layer as built when it is first called with hooks.
        path: (type(layer), {name: describe(value) for name, value in vars(layer).items() if name != "_built"})
        for path, layer in model.named_sublayers(include_self=True)
    }


def run_in_new_process(code: str, *arguments: str) -> Any:
    """Run ``code`` in a fresh interpreter; what it prints last, as JSON, is returned."""
    # Today's scipy, which paddlenlp imports, needs Python's own zlib: Paddle 2.6.2 brings another one if it is first.
    result = subprocess.run(
        [sys.executable, "-c", "import zlib\n" + code, *arguments],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": python_path(ROOT, ROOT / "tests")},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.strip().splitlines()[-1])
