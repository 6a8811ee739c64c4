"""Static programs of single models: traced and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.export.folder import PROGRAM

# The deploy pipelines assume these numbers (``PaddleInferDiffusionPipelineMixin``).
LATENT_CHANNELS, VAE_SCALE_FACTOR = 4, 8
_SCALING_FACTOR, _NUM_CONTROL_SCALES = 0.18215, 13

Shape = list[int | None]


@dataclass(frozen=True)
class Component:
    """A model to be traced as a program.

    Its layer takes the inputs by position and returns one tensor. The first dimension is the batch.
    """

    name: str  # of the program's folder
    layer: paddle.nn.Layer
    inputs: dict[str, tuple[Shape, str]]  # shape, in which None is dynamic, and data type
    example_length: int = 1  # of dynamic dimensions other than the batch in examples

    def save(self, folder: Path) -> None:
        """Trace the program and write it to ``folder/name``."""
        # An InputSpec writes -1 into the list that it gets, so it gets a copy.
        specs = [
            paddle.static.InputSpec(list(shape), getattr(paddle, dtype), name)
            for name, (shape, dtype) in self.inputs.items()
        ]
        with self._set_for_inference():
            program = paddle.jit.to_static(self.layer, input_spec=specs, full_graph=True)
            paddle.jit.save(program, str(folder / self.name / PROGRAM))

    def make_examples(self) -> list[dict[str, paddle.Tensor]]:
        """Return reproducible random inputs at an early and a late timestep.

        A dynamic batch has one row in the first and two in the second.
        """
        examples = []
        for num_rows, timestep in ((1, 981.0), (2, 1.0)):
            rng, example = np.random.default_rng(0), {}
            for name, (shape, dtype) in self.inputs.items():
                static_shape = [size or (self.example_length if axis else num_rows) for axis, size in enumerate(shape)]
                if name == "timestep":
                    values = np.full(static_shape, timestep)
                elif dtype == "int64":
                    values = rng.integers(0, 100, static_shape)
                else:
                    values = rng.standard_normal(static_shape)
                example[name] = paddle.to_tensor(values.astype(dtype))
            examples.append(example)
        return examples

    @paddle.no_grad()
    def run(self, example: dict[str, paddle.Tensor]) -> np.ndarray:
        """Return the output of the model itself, the reference for its program."""
        with self._set_for_inference():
            return self.layer(*example.values()).numpy()

    @contextmanager
    def _set_for_inference(self) -> Iterator[None]:
        """Set the layer and its models to evaluation mode; restore them afterwards."""
        # Tracing puts functions in place of ``forward``, and Paddle 2.6 leaves them there.
        before = {part: {name: vars(part)[name] for name in ("training", "forward") if name in vars(part)}
                  for part in self.layer.sublayers(include_self=True)}  # fmt: skip
        self.layer.eval()
        try:
            yield
        finally:
            for part, attributes in before.items():
                vars(part).pop("forward", None)
                vars(part).update(attributes)


class DeployedModel(paddle.nn.Layer):
    """A model in the form that a deploy pipeline runs."""

    def __init__(self, model: Any, controlnet: Any = None) -> None:
        super().__init__()
        self.model, self.controlnet = model, controlnet


class Denoiser(DeployedModel):
    """A UNet, guided by a ControlNet if there is one."""

    def forward(
        self, sample: paddle.Tensor, timestep: paddle.Tensor, encoder_hidden_states: paddle.Tensor,
        controlnet_cond: paddle.Tensor | None = None, controlnet_conditioning_scale: paddle.Tensor | None = None,
    ) -> paddle.Tensor:  # fmt: skip
        down, middle = None, None
        if self.controlnet is not None:
            down, middle = self.controlnet(
                sample, timestep, encoder_hidden_states, controlnet_cond,
                conditioning_scale=controlnet_conditioning_scale, return_dict=False,
            )  # fmt: skip
        return self.model(
            sample, timestep, encoder_hidden_states, down_block_additional_residuals=down,
            mid_block_additional_residual=middle, return_dict=False,
        )[0]  # fmt: skip


class TextEncoder(DeployedModel):
    """A text encoder that returns its last hidden states alone."""

    def forward(self, input_ids: paddle.Tensor) -> paddle.Tensor:
        return self.model(input_ids, return_dict=False)[0]


class VaeEncoder(DeployedModel):
    """A VAE's encoder that corrects for the deploy pipelines' fixed scaling factor."""

    def forward(self, sample: paddle.Tensor) -> paddle.Tensor:
        latent = self.model.encode(sample).latent_dist.mode()
        return latent * (self.model.config.scaling_factor / _SCALING_FACTOR)


class VaeDecoder(DeployedModel):
    """A VAE's decoder that corrects for the deploy pipelines' fixed scaling factor."""

    def forward(self, latent_sample: paddle.Tensor) -> paddle.Tensor:
        latent = latent_sample * (_SCALING_FACTOR / self.model.config.scaling_factor)
        return self.model.decode(latent, return_dict=False)[0]


def build_denoiser_component(
    unet: Any, controlnet: Any = None, *, height: int, width: int, rows: int | None = None, text_tokens: int = 77
) -> Component:
    """Return the component of a UNet and its ControlNet, if any.

    Sizes are those of ``export_pipeline``, ``text_tokens`` the number in examples.
    """
    latent = [rows, unet.config.in_channels, height // VAE_SCALE_FACTOR, width // VAE_SCALE_FACTOR]
    inputs: dict[str, tuple[Shape, str]] = {
        "sample": (latent, "float32"),
        "timestep": ([1], "float32"),
        "encoder_hidden_states": ([rows, None, unet.config.cross_attention_dim], "float32"),
    }
    if controlnet is not None:
        inputs["controlnet_cond"] = ([rows, 3, height, width], "float32")
        inputs["controlnet_conditioning_scale"] = ([_NUM_CONTROL_SCALES], "float32")
    return Component("unet", Denoiser(unet, controlnet), inputs, text_tokens)
