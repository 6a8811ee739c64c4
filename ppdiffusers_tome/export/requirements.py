"""Requirements of an export, checked before slow imports. Imports no Paddle."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from numbers import Integral
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import describe_type, truncated_repr

TOLERANCE = 1e-4
# The deploy pipelines assume these numbers (``PaddleInferDiffusionPipelineMixin``).
LATENT_CHANNELS, VAE_SCALE_FACTOR = 4, 8


def require_exportable(config: ToMeConfig, denoiser: str = "") -> None:
    """Refuse settings that need values known only at run time.

    Raises:
        ToMeValueError: the settings cannot be exported.
    """
    setting = ""
    if config.uses_progress:
        setting, remedy = "a ratio that changes over the denoising, start or end", "give one constant ratio"
    elif config.min_similarity is not None:
        setting, remedy = "min_similarity", "omit it"
    elif config.cache:
        setting, remedy = "cache", "omit it"
    if setting:
        owner = f" of {denoiser}" if denoiser else ""
        raise ToMeValueError(
            f"{setting}{owner} cannot be exported: a program does the same in every step; {remedy}"
        )


def require_image_size(height: int, width: int, rows: int | None) -> None:
    """Refuse sizes for which no program can be written.

    Raises:
        ToMeTypeError: a size is not a whole number.
        ToMeValueError: a size is out of range.
    """
    side, any_rows = (VAE_SCALE_FACTOR, "a multiple of 8, such as 512"), (1, "1 or more; 2 is one guided image")
    for name, value, (multiple, accepted) in (
        ("height", height, side), ("width", width, side), ("rows", 1 if rows is None else rows, any_rows),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ToMeTypeError(f"{name}={truncated_repr(value)} must be a whole number; got {describe_type(value)}")
        if value < 1 or value % multiple:
            raise ToMeValueError(f"{name}={value} must be {accepted}")


def require_deployable(pipe: Any) -> None:
    """Refuse a pipeline that ppdiffusers' deploy pipelines cannot run.

    Raises:
        ToMeValueError: its class, its shapes or its data type do not fit.
    """
    class_name, controlnet = type(pipe).__name__, getattr(pipe, "controlnet", None)
    if class_name not in ("StableDiffusionPipeline", "StableDiffusionControlNetPipeline"):
        raise ToMeValueError(
            f"a {class_name} cannot be exported; give a StableDiffusionPipeline or StableDiffusionControlNetPipeline, "
            "or export its denoiser with paddle.jit.save"
        )
    if controlnet is not None and type(controlnet).__name__ != "ControlNetModel":
        raise ToMeValueError(
            f"a {type(controlnet).__name__} cannot be exported; the deploy pipelines take one ControlNet"
        )
    channels = (pipe.unet.config.in_channels, pipe.vae.config.latent_channels)
    if channels != (LATENT_CHANNELS, LATENT_CHANNELS) or pipe.vae_scale_factor != VAE_SCALE_FACTOR:
        raise ToMeValueError(
            f"a UNet of {channels[0]} and a VAE of {channels[1]} channels at 1/{pipe.vae_scale_factor} of the size "
            f"cannot be exported; the deploy pipelines take {LATENT_CHANNELS} channels at 1/{VAE_SCALE_FACTOR}"
        )
    dtype = str(pipe.unet.dtype).removeprefix("paddle.")
    if dtype != "float32":
        raise ToMeValueError(
            f"a model in {dtype} cannot be exported; load it in float32, and let Paddle Inference convert it"
        )


def require_onnx() -> None:
    """Refuse installed packages that cannot convert programs for ONNX, without importing them.

    Raises:
        ToMeValueError: a package is absent or of the wrong version.
    """
    install = 'pip install "paddle2onnx>=1.3,<2" onnxruntime'
    paddle = installed_version("paddlepaddle") or installed_version("paddlepaddle-gpu") or "none"
    if not paddle.startswith("2."):
        raise ToMeValueError(
            f"Paddle {paddle} cannot export for ONNX: paddle2onnx for Paddle 3 converts no UNet, merged or not; export "
            f"with Paddle 2.6.2, and {install}"
        )
    converter = installed_version("paddle2onnx") or "none"
    if not converter.startswith("1.") or importlib.util.find_spec("onnxruntime") is None:
        raise ToMeValueError(
            f"exporting for ONNX with Paddle {paddle} needs onnxruntime and paddle2onnx 1.3, and paddle2onnx "
            f"{converter} is installed; {install}"
        )


def installed_version(package: str) -> str | None:
    """Return a package's version by its registry name, or None without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
