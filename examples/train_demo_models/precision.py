"""The precision in which the training scripts compute."""

from __future__ import annotations

import functools
import timeit

import torch
from torch import nn


def autocast(device: str = "cpu") -> torch.autocast:
    """Compute in bfloat16 on a GPU, and on a processor that is faster in it."""
    return torch.autocast(device, torch.bfloat16, enabled=device != "cpu" or _is_bfloat16_faster())


@functools.cache
def _is_bfloat16_faster() -> bool:
    """Measure it: some processors with bfloat16 instructions need 1.5 times float32's time."""
    is_supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return is_supported and _time_convolution(torch.bfloat16) < _time_convolution(torch.float32)


@torch.enable_grad()  # the first use of autocast may be under no_grad
def _time_convolution(dtype: torch.dtype) -> float:
    """Return the shortest time of ten convolutions, forward and backward, in seconds."""
    images = torch.ones(8, 96, 32, 32, dtype=dtype, requires_grad=True)
    convolution = nn.Conv2d(96, 96, 3, padding=1, dtype=dtype)
    return min(timeit.repeat(lambda: convolution(images).sum().backward(), number=1, repeat=10))
