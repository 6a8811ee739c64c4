"""What the training scripts share: seeds, arithmetic that fits the processor, averaged weights, the rate's course."""

from __future__ import annotations

import argparse
import copy
import functools
import math
import timeit
from pathlib import Path

import torch
from torch import nn

from ppdiffusers_tome.tools.training.run import Run


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


def step(loss: torch.Tensor, optimiser: torch.optim.Optimizer, rate: float) -> None:
    """One step of the optimiser, its gradient at most 1 long."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for group in optimiser.param_groups:
        group["lr"] = rate
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
