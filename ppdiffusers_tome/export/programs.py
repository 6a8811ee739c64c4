"""One model as a static program: recorded, written, loaded into Paddle Inference and run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from ppdiffusers import PaddleInferRuntimeModel

from ppdiffusers_tome.export.layout import PROGRAM

# Numbers that the deploy pipelines take for granted (``PaddleInferDiffusionPipelineMixin``).
SCALING, VAE_SCALE, CHANNELS, CONTROL_SCALES = 0.18215, 8, 4, 13
_TIMESTEPS = (981.0, 1.0)


@dataclass(frozen=True)
class Component:
    """A program to be.

    Attributes:
        name: of its folder.
        build: makes the layer; it takes the inputs by position and gives one tensor.
        inputs: of each its shape, None for what stays open, and its type.
        usual: a length for each open axis but the first, to check with.
    """

    name: str
    build: Callable[[], paddle.nn.Layer]
    inputs: dict[str, tuple[list[int | None], str]]
    usual: int = 1

    def save(self, folder: Path) -> None:
        """Record the program and write it to ``folder/name``."""
        # An InputSpec writes -1 into the list that it is given.
        specs = [
            paddle.static.InputSpec(list(shape), getattr(paddle, dtype), name)
            for name, (shape, dtype) in self.inputs.items()
        ]
        layer = self.build()
        layer.eval()
        program = paddle.jit.to_static(layer, input_spec=specs, full_graph=True)
        paddle.jit.save(program, str(folder / self.name / PROGRAM))

    def examples(self) -> list[dict[str, paddle.Tensor]]:
        """Inputs to run it with: one and two rows where the batch is open, at an early and a late timestep."""
        rows = next(iter(self.inputs.values()))[0][0]
        return [
            self.example(batch, timestep)
            for batch, timestep in zip((1, 2) if rows is None else (rows, rows), _TIMESTEPS, strict=True)
        ]

    def example(self, rows: int, timestep: float) -> dict[str, paddle.Tensor]:
        """Inputs of ``rows`` rows, the same every time."""
        draw = np.random.default_rng(0)
        made = {}
        for name, (shape, dtype) in self.inputs.items():
            sizes = [size or (self.usual if axis else rows) for axis, size in enumerate(shape)]
            if name == "timestep":
                values = np.full(sizes, timestep)
            elif dtype == "int64":
                values = draw.integers(0, 100, sizes)
            else:
                values = draw.standard_normal(sizes)
            made[name] = paddle.to_tensor(values.astype(dtype))
        return made

    @paddle.no_grad()
    def run(self, example: dict[str, paddle.Tensor]) -> np.ndarray:
        """What it is to give, from the model itself."""
        layer = self.build()
        layer.eval()
        return layer(*example.values()).numpy()


class _Denoiser(paddle.nn.Layer):
    def __init__(self, unet: Any) -> None:
        super().__init__()
        self.unet = unet

    def forward(
        self, sample: paddle.Tensor, timestep: paddle.Tensor, encoder_hidden_states: paddle.Tensor
    ) -> paddle.Tensor:
        return self.unet(sample, timestep, encoder_hidden_states, return_dict=False)[0]


class _GuidedDenoiser(paddle.nn.Layer):
    def __init__(self, unet: Any, controlnet: Any) -> None:
        super().__init__()
        self.unet, self.controlnet = unet, controlnet

    def forward(
        self, sample: paddle.Tensor, timestep: paddle.Tensor, encoder_hidden_states: paddle.Tensor,
        controlnet_cond: paddle.Tensor, controlnet_conditioning_scale: paddle.Tensor,
    ) -> paddle.Tensor:  # fmt: skip
        down, middle = self.controlnet(
            sample, timestep, encoder_hidden_states, controlnet_cond,
            conditioning_scale=controlnet_conditioning_scale, return_dict=False,
        )  # fmt: skip
        return self.unet(
            sample, timestep, encoder_hidden_states, down_block_additional_residuals=down,
            mid_block_additional_residual=middle, return_dict=False,
        )[0]  # fmt: skip


class TextEncoder(paddle.nn.Layer):
    def __init__(self, text_encoder: Any) -> None:
        super().__init__()
        self.text_encoder = text_encoder

    def forward(self, input_ids: paddle.Tensor) -> paddle.Tensor:
        return self.text_encoder(input_ids, return_dict=False)[0]


class VaeEncoder(paddle.nn.Layer):
    """Latents so scaled that the deploy pipelines' fixed factor makes them this VAE's."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae, self.factor = vae, vae.config.scaling_factor / SCALING

    def forward(self, sample: paddle.Tensor) -> paddle.Tensor:
        return self.vae.encode(sample).latent_dist.mode() * self.factor


class VaeDecoder(paddle.nn.Layer):
    """Takes latents as the deploy pipelines' fixed factor leaves them."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae, self.factor = vae, SCALING / vae.config.scaling_factor

    def forward(self, latent_sample: paddle.Tensor) -> paddle.Tensor:
        return self.vae.decode(latent_sample * self.factor, return_dict=False)[0]


def denoiser_component(
    unet: Any, controlnet: Any = None, *, height: int, width: int, rows: int | None = None, text_tokens: int = 77
) -> Component:
    """A UNet, with a ControlNet where one is given.

    Args:
        unet, controlnet: ppdiffusers' models, ToMe applied or not.
        height, width: of the picture in pixels.
        rows: of its input, two a picture with guidance; None leaves them open.
        text_tokens: how many to check it with; they stay open.
    """
    latent = [rows, unet.config.in_channels, height // VAE_SCALE, width // VAE_SCALE]
    inputs: dict[str, tuple[list[int | None], str]] = {
        "sample": (latent, "float32"),
        "timestep": ([1], "float32"),
        "encoder_hidden_states": ([rows, None, unet.config.cross_attention_dim], "float32"),
    }
    if controlnet is None:
        return Component("unet", lambda: _Denoiser(unet), inputs, text_tokens)
    inputs["controlnet_cond"] = ([rows, 3, height, width], "float32")
    inputs["controlnet_conditioning_scale"] = ([CONTROL_SCALES], "float32")
    return Component("unet", lambda: _GuidedDenoiser(unet, controlnet), inputs, text_tokens)


class Program(PaddleInferRuntimeModel):
    """ppdiffusers' runtime model, but what it runs is filled in through Paddle Inference's handles.

    Handing the predictor tensors, as ppdiffusers does, ends the process on Paddle 2.6.2, whatever the model.
    """

    def __call__(self, **inputs: Any) -> list[paddle.Tensor]:
        """Run it with its inputs by name; others are ignored. A timestep may be any number."""
        for name in self.model.get_input_names():
            value = np.asarray(inputs[name])
            value = value.reshape([1]).astype("float32") if name == "timestep" else value
            self.model.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(value))
        self.model.run()
        outputs = (self.model.get_output_handle(name) for name in self.model.get_output_names())
        return [paddle.to_tensor(output.copy_to_cpu()) for output in outputs]


def load_program(folder: Path) -> Program:
    """One exported component for Paddle Inference, with IR optimisation."""
    name = program_file(folder).name
    return Program.from_pretrained(str(folder), model_file_name=name, infer_configs=inference_config())


def program_file(folder: Path) -> Path:
    """The program in the folder of a component: Paddle 2 writes ``.pdmodel``, Paddle 3 ``.json``."""
    return next(folder / f"{PROGRAM}{end}" for end in (".pdmodel", ".json") if (folder / f"{PROGRAM}{end}").exists())


def inference_config() -> Any:
    """Paddle Inference on the device that Paddle uses, with as many threads, IR optimisation on and oneDNN off."""
    from paddle import inference

    config = inference.Config()
    config.disable_glog_info()
    config.disable_mkldnn()
    config.switch_ir_optim(True)
    device, _, index = paddle.get_device().partition(":")
    if device == "gpu":
        config.enable_use_gpu(256, int(index or 0))
    config.set_cpu_math_library_num_threads(num_threads())
    return config


def num_threads() -> int:
    """How many threads those who run programs are given: ``OMP_NUM_THREADS``, or one."""
    return int(os.environ.get("OMP_NUM_THREADS") or 1)
