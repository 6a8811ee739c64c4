"""What the trainings of the denoisers share: the schedule, a step, the stages, and sheets of what they draw by now."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import (
    AdamW,
    Muon,
    autocast,
    average,
    averaged_copy,
    decayed,
    make_parser,
    millions,
    save,
    step,
)
from diffusers import AutoencoderKL, DDIMScheduler
from grown import CheapFinestLevel
from latents import Latents, make_latents
from run import Run
from sheets import to_pictures, write_sheet
from torch import nn
from torch.nn import functional as F
from views import WIDTH

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS

# The noise goes to nearly nothing of the picture at the last timestep (signal 0.3%): with Stable Diffusion's own
# schedule a background's colour shows through the strongest noise, and the model learns to wait for it.
SCHEDULE = dict(
    num_train_timesteps=1000, beta_start=0.0006, beta_end=0.024, beta_schedule="linear",
    prediction_type="v_prediction", clip_sample=False, set_alpha_to_one=True, steps_offset=1,
    timestep_spacing="trailing",
)
LOOK_MINUTES = 20.0

# From the model, noisy latents, timesteps and the places of their views in the latents, at a size in pixels, to the
# velocity. A place of -1 is unprompted.
Predict = Callable[[nn.Module, torch.Tensor, torch.Tensor, np.ndarray, int], torch.Tensor]


@dataclass(frozen=True)
class Stage:
    """So many minutes at a picture's size in pixels, with so many pictures a step, at a rate of learning.

    With a window the finest level is the cheap one of ``grown.CheapFinestLevel``; in the first stage new convolutions
    are passed by too.
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


def denoiser_parser(doc: str, stages: str, *folders: str) -> argparse.ArgumentParser:
    """A parser with what every denoiser's training takes."""
    parser = make_parser(doc, "vae", *folders)
    parser.add_argument("--latents", type=Path, help="folder where latents are kept; next to the output by default")
    parser.add_argument("--stages", default=stages, help="size:minutes:batch:rate, perhaps :window, one after another")
    parser.add_argument("--views", type=int, default=16, help="of each subject")
    parser.add_argument("--width", type=float, default=WIDTH, help="how much views differ: 1 is crops of 0.9 to 1")
    parser.add_argument("--mirror", action="store_true", help="mirror every second view, and say so in its prompt")
    parser.add_argument("--focus", type=float, default=0.3, help="share of timesteps from the middle of the schedule")
    return parser


def load_latents(args: argparse.Namespace) -> Latents:
    return make_latents(args.vae, args.latents or args.output.parent / "latents", args.views, args.width, args.mirror)


def noised(
    scheduler: DDIMScheduler, latents: torch.Tensor, focus: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noisy latents, their timesteps and the velocity to predict.

    A share ``focus`` of the timesteps comes from where outlines are decided, a signal-to-noise ratio of 2 to 0.005:
    colours and places, decided before that, are learned long before outlines are.
    """
    noise = torch.randn_like(latents)
    middle = torch.rand(len(latents)) < focus
    timesteps = torch.where(
        middle, torch.randint(150, 650, (len(latents),)), torch.randint(0, 1000, (len(latents),))
    )
    return (
        scheduler.add_noise(latents, noise, timesteps),
        timesteps,
        scheduler.get_velocity(latents, noise, timesteps),
    )


def train(
    args: argparse.Namespace, model: nn.Module, latents: Latents, predict: Predict, unprompted: float = 0.1,
    frozen: Sequence[nn.Module] = (), pooled: int = 1, adamw: bool = False,
) -> None:
    """Train a denoiser, or what guides one, through its stages, and save the average of its weights.

    Args:
        args: the command's.
        model: what learns.
        latents: of what.
        predict: how it is called.
        unprompted: share of the pictures without words.
        frozen: what it is trained with, and whose finest level is cheap when its own is.
        pooled: side of the squares over whose mean it sees noisy latents; 1 for all of them. Other than in latents of
            smaller pictures the noise is then as weak as in the coarser levels of a larger model.
        adamw: with AdamW rather than Muon.
    """
    scheduler = DDIMScheduler(**SCHEDULE)
    averaged = averaged_copy(model)
    model = model.to(memory_format=torch.channels_last)  # faster on a CPU; what is saved stays contiguous
    print(f"{millions(model)} million parameters", flush=True)
    for number, stage in enumerate(Stage.parse(text) for text in args.stages.split(",")):
        optimiser = AdamW(model.parameters(), stage.rate) if adamw else Muon(model, stage.rate)
        run = Run(args.output, f"{number + 1}: {stage.size} pixels", stage.minutes, args.seed,
                  model=model, averaged=averaged, optimiser=optimiser)
        if not run.finished:
            cheap = CheapFinestLevel((model, averaged, *frozen), stage.window, asleep=number == 0)
            _train_stage(run, stage, scheduler, latents, predict, args, unprompted, pooled)
            cheap.end()
            save(averaged, run.output)
            scheduler.save_pretrained(run.output / "scheduler")
            model.load_state_dict(averaged.state_dict())  # the next stage begins with it
            run.finish(size=stage.size, batch=stage.batch, rate=stage.rate, window=stage.window)


def _train_stage(
    run: Run, stage: Stage, scheduler: DDIMScheduler, latents: Latents, predict: Predict, args: argparse.Namespace,
    unprompted: float, pooled: int,
) -> None:
    model, averaged, optimiser = (run.held[name] for name in ("model", "averaged", "optimiser"))
    scaled = latents.at(stage.size)
    looked = run.spent_minutes
    while run.running:
        rng = run.chance()
        chosen = rng.integers(0, len(scaled), stage.batch)
        noisy, timesteps, velocity = noised(scheduler, scaled[torch.from_numpy(chosen)], args.focus)
        places = np.where(rng.random(stage.batch) < unprompted, -1 - chosen, chosen)
        if pooled > 1:
            noisy, velocity = (F.avg_pool2d(each, pooled) for each in (noisy, velocity))
        noisy = noisy.contiguous(memory_format=torch.channels_last)
        with autocast():
            predicted = predict(model, noisy, timesteps, places, stage.size).float()
        loss = F.mse_loss(predicted, velocity)
        step(loss, optimiser, decayed(stage.rate, run, warmup_steps=50))
        average(averaged, model, run.steps)
        run.step(size=stage.size, loss=loss.item())
        if run.spent_minutes - looked > LOOK_MINUTES:
            looked = run.spent_minutes
            look(run, averaged, scheduler, latents, predict, stage.size, args.vae, pooled)
    look(run, averaged, scheduler, latents, predict, stage.size, args.vae, pooled)


@torch.no_grad()
def look(
    run: Run, model: nn.Module, scheduler: DDIMScheduler, latents: Latents, predict: Predict, size: int, vae: Path,
    pooled: int = 1, steps: int = 10,
) -> None:
    """Draw every subject once, unguided, and write the pictures below those of the latents that stand for them."""
    count = len(SUBJECTS)
    places = np.arange(count)
    generator = torch.Generator().manual_seed(0)
    whole = latents.at(size)[:count]
    asked, drawn = (F.avg_pool2d(each, pooled) for each in (whole, torch.randn(whole.shape, generator=generator)))
    scheduler.set_timesteps(steps)
    for timestep in scheduler.timesteps:
        with autocast():
            velocity = predict(model, drawn, timestep.expand(count), places, size).float()
        drawn = scheduler.step(velocity, timestep, drawn).prev_sample
    decoder = AutoencoderKL.from_pretrained(vae).eval().to(memory_format=torch.channels_last)
    rows = []
    for row in (asked, drawn):
        decoded = [decoder.decode(latent[None] / decoder.config.scaling_factor).sample for latent in row]
        rows.append(to_pictures(torch.cat(decoded)))
    write_sheet(run.output / "sheets" / f"{size}-{run.steps:06d}.png", rows)
