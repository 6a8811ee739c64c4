"""Requirements of an export, checked before slow imports.

This module imports no Paddle.
"""

from __future__ import annotations

import importlib.util
from numbers import Integral
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.export.versions import installed_version
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import describe_type, truncated_repr

TOLERANCE = 1e-4
# The deploy pipelines assume these numbers (``PaddleInferDiffusionPipelineMixin``).
LATENT_CHANNELS, VAE_SCALE_FACTOR = 4, 8
_INSTALL_ONNX = 'pip install "paddle2onnx>=1.3,<2" onnxruntime'


def require_exportable(config: ToMeConfig, denoiser: str = "") -> None:
    """Refuse settings that need values known only at run time.

    A program has a fixed number of merged tokens.

    Args:
        config: the settings.
        denoiser: the denoiser that has them, named in the error.

    Raises:
        ToMeValueError: the settings cannot be exported.
    """
    owner = f" of {denoiser}" if denoiser else ""
    for has_setting, setting, remedy in (
        (config.uses_progress, "a ratio that changes over the denoising, start or end", "give one constant ratio"),
        (config.min_similarity is not None, "min_similarity", "omit it"),
    ):
        if has_setting:
            raise ToMeValueError(
                f"{setting}{owner} cannot be exported: a program has a fixed number of merged tokens; {remedy}"
            )


def require_image_size(height: int, width: int, rows: int | None) -> None:
    """Refuse sizes for which no program can be written.

    Raises:
        ToMeTypeError: a size is not a whole number.
        ToMeValueError: a size is out of range.
    """
    for name, value, multiple in (("height", height, VAE_SCALE_FACTOR), ("width", width, VAE_SCALE_FACTOR),
                                  ("rows", 1 if rows is None else rows, 1)):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ToMeTypeError(f"{name}={truncated_repr(value)} must be a whole number; got {describe_type(value)}")
        if value < 1 or value % multiple:
            allowed = f"a multiple of {multiple}, such as 512" if multiple > 1 else "1 or more; 2 is one guided image"
            raise ToMeValueError(f"{name}={value} must be {allowed}")


def require_deployable(pipe: Any) -> None:
    """Refuse a pipeline that ppdiffusers' deploy pipelines cannot run.

    Raises:
        ToMeValueError: its class, its shapes or its data type do not fit.
    """
    class_name = type(pipe).__name__
    if class_name not in ("StableDiffusionPipeline", "StableDiffusionControlNetPipeline"):
        raise ToMeValueError(
            f"a {class_name} cannot be exported; give a StableDiffusionPipeline or StableDiffusionControlNetPipeline, "
            "or export its denoiser with paddle.jit.save"
        )
    controlnet = getattr(pipe, "controlnet", None)
    if controlnet is not None and type(controlnet).__name__ != "ControlNetModel":
        raise ToMeValueError(
            f"a {type(controlnet).__name__} cannot be exported; the deploy pipelines take one ControlNet"
        )
    shape = (pipe.unet.config.in_channels, pipe.vae.config.latent_channels, pipe.vae_scale_factor)
    if shape != (LATENT_CHANNELS, LATENT_CHANNELS, VAE_SCALE_FACTOR):
        raise ToMeValueError(
            f"a UNet of {shape[0]} and a VAE of {shape[1]} channels at 1/{shape[2]} of the size cannot be exported; "
            f"the deploy pipelines take {LATENT_CHANNELS} and {LATENT_CHANNELS} channels at 1/{VAE_SCALE_FACTOR}"
        )
    dtype = str(pipe.unet.dtype).removeprefix("paddle.")
    if dtype != "float32":
        raise ToMeValueError(
            f"a model in {dtype} cannot be exported; load it in float32, and let Paddle Inference convert it"
        )


def require_onnx() -> None:
    """Refuse installed packages that cannot convert programs for ONNX.

    Nothing is imported, so the error comes at once.

    Raises:
        ToMeValueError: a package is absent or of the wrong version.
    """
    paddle = installed_version("paddlepaddle") or installed_version("paddlepaddle-gpu") or "none"
    if not paddle.startswith("2."):
        raise ToMeValueError(
            f"Paddle {paddle} cannot export for ONNX: paddle2onnx for Paddle 3 converts no UNet, merged or not; export "
            f"with Paddle 2.6.2, and {_INSTALL_ONNX}"
        )
    converter = installed_version("paddle2onnx") or "none"
    if not converter.startswith("1."):
        raise ToMeValueError(
            f"exporting for ONNX with Paddle {paddle} needs paddle2onnx 1.3, and {converter} is installed; "
            f"{_INSTALL_ONNX}"
        )
    if importlib.util.find_spec("onnxruntime") is None:
        raise ToMeValueError(
            f"exporting for ONNX checks the programs with onnxruntime, which is not installed; {_INSTALL_ONNX}"
        )
