"""Training of the denoisers: arguments, noise schedule, stages, steps and sheets of generated images."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import (
    SCHEDULE,
    AdamW,
    compute_cosine_rate,
    copy_frozen,
    count_millions,
    make_parser,
    save_model,
    update_average,
    update_weights,
)
from diffusers import AutoencoderKL, DDIMScheduler
from finest_level import CheapFinestLevel
from latents import Latents, make_latents
from muon import Muon
from photographs import SUBJECTS
from precision import autocast
from run import Run
from sheets import to_images, write_sheet
from torch import nn
from torch.nn import functional as F
from views import WIDTH

SHEET_MINUTES = 20.0

# Takes the model, noisy latents, timesteps, the indices of their views and the image size in pixels; returns the
# velocity. A negative index is unprompted: -1 - index.
Predict = Callable[[nn.Module, torch.Tensor, torch.Tensor, np.ndarray, int], torch.Tensor]


@dataclass(frozen=True)
class Stage:
    """Settings of one stage.

    Attributes:
        size: of the images, in pixels.
        minutes: the budget.
        batch: images per step.
        rate: the peak learning rate.
        window: side of the windows of ``CheapFinestLevel``, in tokens; 0 to train the whole model. In the first stage
            it skips untrained convolutions too.
    """

    size: int
    minutes: float
    batch: int
    rate: float
    window: int = 0

    @classmethod
    def parse(cls, text: str) -> Stage:
        size, minutes, batch, rate, *window = text.split(":")
        return cls(int(size), float(minutes), int(batch), float(rate), *map(int, window))


def make_denoiser_parser(doc: str, stages: str, *folders: str) -> argparse.ArgumentParser:
    """Make a parser with the arguments of every denoiser's training."""
    parser = make_parser(doc, "vae", *folders)
    parser.add_argument("--latents", type=Path, help="folder of the latents (default: next to the output)")
    parser.add_argument("--stages", default=stages, help="size:minutes:batch:rate[:window] of each stage, by commas")
    parser.add_argument("--views", type=int, default=16, help="of each subject")
    parser.add_argument("--width", type=float, default=WIDTH, help="how much views differ: 1 is crops of 0.9 to 1")
    parser.add_argument("--mirror", action="store_true", help="mirror every second view, and say so in its prompt")
    parser.add_argument("--focus", type=float, default=0.3, help="fraction of timesteps from the schedule's middle")
    return parser


def load_latents(args: argparse.Namespace) -> Latents:
    return make_latents(args.vae, args.latents or args.output.parent / "latents", args.views, args.width, args.mirror)


def add_noise(
    scheduler: DDIMScheduler, latents: torch.Tensor, focus: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return noisy latents, their timesteps and the velocity to predict.

    A fraction ``focus`` of the timesteps has a signal-to-noise ratio of 2 to 0.005, where outlines are decided: colors
    and places, which are decided earlier, are learned long before outlines.
    """
    noise = torch.randn_like(latents)
    is_focused = torch.rand(len(latents)) < focus
    timesteps = torch.where(
        is_focused, torch.randint(150, 650, (len(latents),)), torch.randint(0, 1000, (len(latents),))
    )
    return (
        scheduler.add_noise(latents, noise, timesteps),
        timesteps,
        scheduler.get_velocity(latents, noise, timesteps),
    )


def train(
    args: argparse.Namespace, model: nn.Module, latents: Latents, predict: Predict, unprompted: float = 0.1,
    frozen: Sequence[nn.Module] = (), pool: int = 1, adamw: bool = False,
) -> None:
    """Train a denoiser or a ControlNet, and save the average of its weights.

    Args:
        args: of the command line.
        model: to train.
        latents: to denoise.
        predict: calls the model.
        unprompted: fraction of the images without a prompt.
        frozen: models that ``predict`` needs and whose finest level becomes cheap too.
        pool: side of the squares that noisy latents are averaged over; 1 for none. Unlike in latents of smaller
            images, the noise is then as weak as at the coarser levels of a larger model.
        adamw: use AdamW instead of Muon.
    """
    scheduler = DDIMScheduler(**SCHEDULE)
    average = copy_frozen(model)
    model = model.to(memory_format=torch.channels_last)  # faster on a CPU; saved files stay contiguous
    print(f"{count_millions(model)} million parameters", flush=True)
    for number, stage in enumerate(Stage.parse(text) for text in args.stages.split(",")):
        optimiser = AdamW(model.parameters(), stage.rate) if adamw else Muon(model, stage.rate)
        run = Run(args.output, f"{number + 1}: {stage.size} pixels", stage.minutes, args.seed,
                  model=model, averaged=average, optimiser=optimiser)
        if not run.is_finished:
            cheap = CheapFinestLevel((model, average, *frozen), stage.window, skip_convolutions=number == 0)
            _train_stage(run, stage, scheduler, latents, predict, args, unprompted, pool)
            cheap.remove()
            save_model(average, run.output)
            scheduler.save_pretrained(run.output / "scheduler")
            model.load_state_dict(average.state_dict())  # the next stage starts from it
            run.finish(size=stage.size, batch=stage.batch, rate=stage.rate, window=stage.window)


def _train_stage(
    run: Run, stage: Stage, scheduler: DDIMScheduler, latents: Latents, predict: Predict, args: argparse.Namespace,
    unprompted: float, pool: int,
) -> None:
    model, average, optimiser = (run.objects[name] for name in ("model", "averaged", "optimiser"))
    resized = latents.resize(stage.size)
    sheet_minutes = run.spent_minutes
    while run.is_running:
        rng = run.start_step()
        chosen = rng.integers(0, len(resized), stage.batch)
        noisy, timesteps, velocity = add_noise(scheduler, resized[torch.from_numpy(chosen)], args.focus)
        indices = np.where(rng.random(stage.batch) < unprompted, -1 - chosen, chosen)
        if pool > 1:
            noisy, velocity = (F.avg_pool2d(x, pool) for x in (noisy, velocity))
        noisy = noisy.contiguous(memory_format=torch.channels_last)
        with autocast():
            predicted = predict(model, noisy, timesteps, indices, stage.size).float()
        loss = F.mse_loss(predicted, velocity)
        update_weights(loss, optimiser, compute_cosine_rate(stage.rate, run, warmup_steps=50))
        update_average(average, model, run.steps)
        run.end_step(size=stage.size, loss=loss.item())
        if run.spent_minutes - sheet_minutes > SHEET_MINUTES:
            sheet_minutes = run.spent_minutes
            generate_sheet(run, average, scheduler, latents, predict, stage.size, args.vae, pool)
    generate_sheet(run, average, scheduler, latents, predict, stage.size, args.vae, pool)


@torch.no_grad()
def generate_sheet(
    run: Run, model: nn.Module, scheduler: DDIMScheduler, latents: Latents, predict: Predict, size: int, vae: Path,
    pool: int = 1, steps: int = 10,
) -> None:
    """Generate every subject without guidance, and write a sheet below the training images."""
    count = len(SUBJECTS)
    indices = np.arange(count)
    generator = torch.Generator().manual_seed(0)
    trained = latents.resize(size)[:count]
    noise = torch.randn(trained.shape, generator=generator)
    trained, generated = (F.avg_pool2d(x, pool) for x in (trained, noise))
    scheduler.set_timesteps(steps)
    for timestep in scheduler.timesteps:
        with autocast():
            velocity = predict(model, generated, timestep.expand(count), indices, size).float()
        generated = scheduler.step(velocity, timestep, generated).prev_sample
    decoder = AutoencoderKL.from_pretrained(vae).eval().to(memory_format=torch.channels_last)
    rows = []
    for row in (trained, generated):
        decoded = [decoder.decode(latent[None] / decoder.config.scaling_factor).sample for latent in row]
        rows.append(to_images(torch.cat(decoded)))
    write_sheet(run.output / "sheets" / f"{size}-{run.steps:06d}.png", rows)
