"""What the training scripts share: seeds, arithmetic that fits the processor, averaged weights, the rate's course."""

from __future__ import annotations

import argparse
import copy
import functools
import math
import timeit
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from run import Run
from torch import nn


def make_parser(doc: str, *folders: str) -> argparse.ArgumentParser:
    """A parser with ``--output``, ``--seed`` and the folders of what was trained before."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    for name in (*folders, "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def autocast() -> torch.autocast:
    """bfloat16 where the processor convolves in it more quickly, float32 elsewhere."""
    return torch.autocast("cpu", torch.bfloat16, enabled=_bfloat16_is_quicker())


@functools.cache
def _bfloat16_is_quicker() -> bool:
    """Measured: some processors that have its instructions take half as long again as in float32."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and _seconds(torch.bfloat16) < _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    """The shortest of ten convolutions, forward and backward."""
    pictures = torch.ones(8, 96, 32, 32, dtype=dtype, requires_grad=True)
    convolution = nn.Conv2d(96, 96, 3, padding=1, dtype=dtype)
    return min(timeit.repeat(lambda: convolution(pictures).sum().backward(), number=1, repeat=10))


def averaged_copy(model: nn.Module) -> nn.Module:
    """A copy without gradients, for the moving average of the weights."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def average(averaged: nn.Module, model: nn.Module, steps: int) -> None:
    """Move the average towards the model: over about 500 steps, fewer at the beginning."""
    keep = min(0.998, steps / (steps + 10))
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - keep)


def warmed(peak: float, run: Run, warmup_steps: int = 100) -> float:
    """Linear warm-up to the peak."""
    return peak * min(1.0, (run.steps + 1) / warmup_steps)


def decayed(peak: float, run: Run, warmup_steps: int = 100) -> float:
    """Linear warm-up, then a cosine over the run's minutes down to a fiftieth of the peak."""
    return warmed(peak, run, warmup_steps) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, run.progress))))


class AdamW(torch.optim.AdamW):
    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, lr=rate, weight_decay=1e-3, betas=(0.9, 0.99))


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for matrices, AdamW at half the rate for all else.

    Every weight of two or four dimensions is a matrix, also of the first and the last layer; a convolution's kernels
    are the rows of one. Updates are scaled as AdamW's are (Liu et al. 2025, arXiv 2502.16982), so its rates serve. A
    small UNet's loss fell in four minutes of one core to 0.19, with AdamW alone to 0.25. Needs PyTorch 2.9.

    Args:
        model: in the memory format channels last, as matrices look into its kernels.
        rate: of learning.
    """

    def __init__(self, model: nn.Module, rate: float) -> None:
        weights = [each for each in model.parameters() if each.ndim >= 2]
        others = [each for each in model.parameters() if each.ndim < 2]
        super().__init__([dict(params=weights), dict(params=others, share=0.5)], dict(lr=rate))
        self._matrices = [nn.Parameter(_as_matrix(weight.detach())) for weight in weights]
        if any(a.data_ptr() != b.data_ptr() for a, b in zip(self._matrices, weights, strict=True)):
            raise ValueError("the model's memory format is not channels last")
        self._parts = (
            torch.optim.Muon(self._matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            AdamW(others, rate),
        )

    def step(self, closure: None = None) -> None:
        for matrix, weight in zip(self._matrices, self.param_groups[0]["params"], strict=True):
            matrix.grad = None if weight.grad is None else _as_matrix(weight.grad)
        for group, part in zip(self.param_groups, self._parts, strict=True):
            part.param_groups[0]["lr"] = group["lr"]
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {str(number): part.state_dict() for number, part in enumerate(self._parts)}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        for number, part in enumerate(self._parts):
            part.load_state_dict(states[str(number)])


def _as_matrix(weight: torch.Tensor) -> torch.Tensor:
    """``[out, all else]``, in the weight's own memory where that is channels last."""
    return weight if weight.ndim == 2 else weight.permute(0, 2, 3, 1).flatten(1)


def step(loss: torch.Tensor, optimiser: torch.optim.Optimizer, rate: float) -> None:
    """One step of the optimiser, its gradient at most 1 long."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get("share", 1.0)
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()


def save(model: nn.Module, folder: Path) -> None:
    """Save a copy whose memory lies as files want it; each file is replaced whole, as others may be reading it."""
    new = folder / "new"
    copy.deepcopy(model).to(memory_format=torch.contiguous_format).save_pretrained(new)
    for file in new.iterdir():
        file.replace(folder / file.name)
    new.rmdir()


def millions(model: nn.Module) -> float:
    return round(sum(p.numel() for p in model.parameters()) / 1e6, 2)
