"""Images of pipelines' outputs as arrays, and their similarity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
from PIL import Image

from ppdiffusers_tome.errors import ToMeTypeError
from ppdiffusers_tome.settings.text import describe_type

_ROUNDING = 1e-2  # of half precision, around 0 to 1


def read_first_image(output: Any) -> np.ndarray:
    """Read the first image of a pipeline's output.

    Args:
        output: with ``images`` as PIL images, arrays ``[batch, height, width, channels]`` (``output_type="np"``) or
            tensors ``[batch, channels, height, width]`` (``output_type="pd"``); floats are in 0 to 1.

    Returns:
        uint8 ``[height, width, 3]``.

    Raises:
        ToMeTypeError: the output holds no images, such as latents, videos or audio.
    """
    images = getattr(output, "images", None)
    if images is None:
        raise _refuse(f"this call returned {type(output).__name__} without images")
    has_batch = isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4
    if has_batch and len(images) == 0:
        raise _refuse("this call returned none")
    image = images[0] if has_batch else images
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB"))
    channels: tuple[int, ...] = (1, 3, 4)
    if isinstance(image, paddle.Tensor):
        array = (image if image.dtype == paddle.uint8 else image.astype("float32")).numpy()
        pixels, channels = array.transpose(1, 2, 0) if array.ndim == 3 else array, (1, 3)  # four channels are latents
    else:
        pixels = np.asarray(image)
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.dtype.kind not in "fu" or pixels.shape[-1] not in channels:
        raise _refuse(f"images[0] of this call is a {describe_type(image)}, as of latents or videos")
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise _refuse(f"the numbers of this call are in {low:.2g} to {high:.2g}, not 0 to 1, as of latents")
        pixels = (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    return np.asarray(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB"))


def compute_psnr(reference: np.ndarray, pixels: np.ndarray) -> float:
    """Compute the PSNR of two uint8 images in dB; infinite for identical ones."""
    squared_error = np.mean(np.square(reference.astype(np.float64) - pixels))
    return math.inf if squared_error == 0 else 10 * math.log10(255**2 / squared_error)


def _refuse(reason: str) -> ToMeTypeError:
    return ToMeTypeError(
        f"tune compares images, and {reason}; choose settings by hand, or let the call return images "
        "(output_type='pil')"
    )
