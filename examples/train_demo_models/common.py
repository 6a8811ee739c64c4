"""Functions that the training scripts share: arguments, optimisers, learning rates and saving."""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from run import Run
from torch import nn

# The last timestep is almost pure noise (0.3% signal): with Stable Diffusion's schedule the color of a background stays
# visible in the strongest noise, and the model learns to rely on it.
SCHEDULE = dict(
    num_train_timesteps=1000, beta_start=0.0006, beta_end=0.024, beta_schedule="linear",
    prediction_type="v_prediction", clip_sample=False, set_alpha_to_one=True, steps_offset=1,
    timestep_spacing="trailing",
)


def make_parser(doc: str, *folders: str) -> argparse.ArgumentParser:
    """Make a parser with ``--output``, ``--seed`` and folders of earlier trainings."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    for name in (*folders, "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def copy_frozen(model: nn.Module) -> nn.Module:
    """Copy a model without gradients, for the moving average of its weights."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, steps: int) -> None:
    """Move the average towards the model: over about 500 steps, fewer at the beginning."""
    keep = min(0.998, steps / (steps + 10))
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - keep)


def compute_warmup_rate(peak: float, run: Run, warmup_steps: int = 100) -> float:
    """Return the learning rate of a linear warm-up to the peak."""
    return peak * min(1.0, (run.steps + 1) / warmup_steps)


def compute_cosine_rate(peak: float, run: Run, warmup_steps: int = 100) -> float:
    """Return the learning rate after warm-up: a cosine down to 2% of the peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, run.progress)))
    return compute_warmup_rate(peak, run, warmup_steps) * (0.02 + 0.98 * cosine)


class AdamW(torch.optim.AdamW):
    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, lr=rate, weight_decay=1e-3, betas=(0.9, 0.99))


def update_weights(loss: torch.Tensor, optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Take one step of the optimiser, with the gradient clipped to norm 1."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()


def save_model(model: nn.Module, folder: Path) -> None:
    """Save a contiguous copy; every file is replaced whole, as trainings may read it."""
    new = folder / "new"
    copy.deepcopy(model).to(memory_format=torch.contiguous_format).save_pretrained(new)
    for file in new.iterdir():
        file.replace(folder / file.name)
    new.rmdir()


def count_millions(model: nn.Module) -> float:
    """Return the number of parameters in millions."""
    return round(sum(p.numel() for p in model.parameters()) / 1e6, 2)
