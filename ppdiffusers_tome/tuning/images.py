"""Images of pipelines' outputs as arrays, and their similarity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
from PIL import Image

from ppdiffusers_tome.errors import ToMeTypeError

_ROUNDING = 1e-2  # of half precision, around 0 to 1
_ADVICE = "choose settings by hand, or let the call return images (output_type='pil')"


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
        raise ToMeTypeError(
            f"tune compares images, and this call returned {type(output).__name__} without images; {_ADVICE}"
        )
    has_batch = isinstance(images, (list, tuple)) or getattr(images, "ndim", 0) == 4
    if has_batch and len(images) == 0:
        raise ToMeTypeError(f"tune compares images, and this call returned none; {_ADVICE}")
    image = images[0] if has_batch else images
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB"))
    if isinstance(image, paddle.Tensor):
        image = image.astype("float32") if image.dtype != paddle.uint8 else image
        pixels = image.numpy().transpose(1, 2, 0) if image.ndim == 3 else image.numpy()
        allowed_channels: tuple[int, ...] = (1, 3)  # four are latents
    else:
        pixels, allowed_channels = np.asarray(image), (1, 3, 4)
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.dtype.kind not in "fu" or pixels.ndim != 3 or pixels.shape[-1] not in allowed_channels:
        raise ToMeTypeError(
            f"tune compares images, and images[0] of this call is {_describe(image)}, as of latents or videos; "
            f"{_ADVICE}"
        )
    return np.asarray(Image.fromarray(_to_uint8(pixels)).convert("RGB"))


def psnr(reference: np.ndarray, pixels: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of two uint8 images in dB.

    Identical images have an infinite ratio.
    """
    squared_error = np.mean(np.square(reference.astype(np.float64) - pixels))
    return math.inf if squared_error == 0 else 10 * math.log10(255**2 / squared_error)


def _to_uint8(pixels: np.ndarray) -> np.ndarray:
    """Convert ``[height, width, channels]``, and drop a single channel's axis.

    Raises:
        ToMeTypeError: floats are out of range, as those of latents.
    """
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            raise ToMeTypeError(
                f"tune compares images of numbers in 0 to 1, and those of this call are in {low:.2g} to {high:.2g}, as "
                f"of latents; {_ADVICE}"
            )
        pixels = (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def _describe(image: Any) -> str:
    """Describe an image by its type and shape."""
    if hasattr(image, "shape"):
        return f"{type(image).__name__} of shape {list(image.shape)}"
    return f"a {type(image).__name__}"
