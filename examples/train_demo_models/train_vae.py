"""Train the small models' autoencoder: 512x512x3 photographs to 64x64x4 latents and back.

    python examples/train_demo_models/train_vae.py --output runs/vae --part encoder --minutes 15
    python examples/train_demo_models/train_vae.py --output runs/vae --part decoder --minutes 14

A loss pulls three of the four latent channels towards the mean color of their 8x8 patch: such latents are smooth, and
the denoiser learns them several times as fast. The decoder memorises the missing detail of the few photographs. At
first encoder and decoder learn on crops of views, which are cheap. Then the encoder is frozen: its simple latents
converge early, denoisers can start on them, and a step of the decoder alone takes two thirds of the time. Whole views
come last, because the statistics of group normalisation differ there.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from common import (
    compute_cosine_rate,
    compute_warmup_rate,
    copy_frozen,
    count_millions,
    make_parser,
    save_model,
    update_average,
    update_weights,
)
from diffusers import AutoencoderKL
from photographs import SUBJECTS
from precision import autocast
from run import Run
from sheets import compute_psnr, to_images, to_tensor, write_sheet
from stages import read_finished_stages
from torch.nn import functional as F
from views import make_held_out_views, make_random_view, render_view

CONFIG = dict(
    block_out_channels=(16, 32, 64, 128),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=1,
    norm_num_groups=8,
    latent_channels=4,
    sample_size=512,
)
WIDTH = 1.5  # of the views: more than the denoiser's, which can be raised without training the autoencoder again
RATE = 1.5e-3
# The crops at each point of the budget: up to this fraction of it, side in pixels, crops per step.
CROPS = {
    "encoder": ((1.0, 128, 4),),
    "decoder": ((0.5, 128, 4), (0.82, 256, 1), (1.0, 512, 1)),
}
SHEET_MINUTES = 10.0
# The most detailed subjects, whose PSNR was lowest, are this many times as frequent.
FREQUENCIES = {"motorcycle": 3.0, "astronaut": 2.0, "coffee": 1.5}
WEIGHTS = np.array([FREQUENCIES.get(subject.name, 1.0) for subject in SUBJECTS])


def make_batch(rng: np.random.Generator, count: int, size: int) -> torch.Tensor:
    """Return crops of 512-pixel views, ``[count, 3, size, size]`` in [-1, 1]."""
    images = []
    for subject in rng.choice(len(WEIGHTS), count, replace=False, p=WEIGHTS / WEIGHTS.sum()):
        view = make_random_view(rng, WIDTH, mirror=True)
        side = size / 512
        x, y = rng.uniform(0, 1 - side, 2)
        images.append(render_view(SUBJECTS[subject], view, size, (x, y, side)))
    return to_tensor(np.stack(images))


def compute_gradients(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the differences of neighbouring pixels, vertical and horizontal."""
    return x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]


def compute_dissimilarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return 1 - SSIM of the grey images, in uniform windows of 8x8 pixels."""
    a, b = (x.mean(1, keepdim=True) / 2 for x in (a, b))
    mean_a, mean_b, squares_a, squares_b, product = (
        F.avg_pool2d(x, 8, stride=4) for x in (a, b, a * a, b * b, a * b)
    )
    variance_a, variance_b = squares_a - mean_a**2, squares_b - mean_b**2
    covariance = product - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + 0.01**2) / (mean_a**2 + mean_b**2 + 0.01**2)
    return 1 - (luminance * (2 * covariance + 0.03**2) / (variance_a + variance_b + 0.03**2)).mean()


def compute_losses(vae: AutoencoderKL, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the parts of the loss, and their weighted sum as ``loss``."""
    with autocast():
        with torch.set_grad_enabled(any(p.requires_grad for p in vae.encoder.parameters())):
            mean = vae.encode(images).latent_dist.mean.float()
        # Noise on the latents makes the decoder robust against small errors of the denoiser.
        decoded = vae.decode(mean + 0.06 * torch.randn_like(mean)).sample.float()
    colors = F.avg_pool2d(images, 8) * 1.5
    parts = {
        "pixel": F.l1_loss(decoded, images),
        "square": F.mse_loss(decoded, images),
        "edge": sum(
            F.l1_loss(a, b)
            for a, b in zip(compute_gradients(decoded), compute_gradients(images), strict=True)
        ),
        "ssim": compute_dissimilarity(decoded, images),
        "anchor": F.mse_loss(mean[:, :3], colors),
        "size": mean[:, 3].square().mean(),
    }
    weights = {"pixel": 1.0, "square": 1.0, "edge": 0.5, "ssim": 0.05, "anchor": 0.1, "size": 0.005}
    return {"loss": sum(weights[name] * part for name, part in parts.items()), **parts}


@torch.no_grad()
def evaluate(vae: AutoencoderKL, sheet: Path, count: int = 1) -> dict[str, float]:
    """Return the mean PSNR of ``count`` held-out views by subject, with a sheet."""
    psnr_by_subject: dict[str, float] = {}
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for subject in SUBJECTS:
        scores = []
        for index, view in enumerate(make_held_out_views(count, WIDTH, mirror=True)):
            image = render_view(subject, view)
            with autocast():
                latent = vae.encode(to_tensor(image[None])).latent_dist.mean
                decoded = to_images(vae.decode(latent).sample)[0]
            scores.append(compute_psnr(image, decoded))
            if index == 0:
                rows[0].append(image)
                rows[1].append(decoded)
        psnr_by_subject[subject.name] = round(float(np.mean(scores)), 2)
    write_sheet(sheet, [np.stack(row) for row in rows])
    print(psnr_by_subject, flush=True)
    return psnr_by_subject


@torch.no_grad()
def compute_scale(vae: AutoencoderKL) -> tuple[float, list[float]]:
    """Return ``scaling_factor``, for latents of unit variance, and the deviation by channel."""
    rng = np.random.default_rng(0)
    latents = torch.cat([vae.encode(make_batch(rng, 1, 512)).latent_dist.mean for _ in range(30)])
    return round(1.0 / latents.std().item(), 4), [round(v, 3) for v in latents.std((0, 2, 3)).tolist()]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=tuple(CROPS), required=True, help="encoder trains both parts")
    parser.add_argument("--minutes", type=float, required=True)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    vae = AutoencoderKL(**CONFIG)
    average = copy_frozen(vae).eval()
    vae = vae.to(memory_format=torch.channels_last)
    is_encoder_frozen = args.part == "decoder"
    encoder = read_finished_stages(args.output).get("encoder", {})
    if is_encoder_frozen:
        if not encoder:
            raise SystemExit(f"the encoder in {args.output} is not finished; begin with --part encoder")
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    parameters = [p for p in vae.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=1e-4, betas=(0.9, 0.98))
    run = Run(args.output, args.part, args.minutes, args.seed, model=vae, averaged=average, optimiser=optimiser)
    print(f"{count_millions(vae)} million parameters", flush=True)
    compute_rate = compute_cosine_rate if is_encoder_frozen else compute_warmup_rate
    sheet_minutes = run.spent_minutes
    while run.is_running:
        rng = run.start_step()
        size, count = next(crops for until, *crops in CROPS[args.part] if run.progress < until or until == 1)
        losses = compute_losses(vae, make_batch(rng, count, size).contiguous(memory_format=torch.channels_last))
        update_weights(losses["loss"], optimiser, compute_rate(RATE, run))
        update_average(average, vae, run.steps)
        run.end_step(side=size, **{name: value.item() for name, value in losses.items()})
        if run.spent_minutes - sheet_minutes > SHEET_MINUTES:
            sheet_minutes = run.spent_minutes
            write_psnr(run, evaluate(average, run.output / "sheets" / f"{args.part}-{run.steps:06d}.png"))
    if not run.is_finished:
        psnr_by_subject = evaluate(average, run.output / "sheets" / f"{args.part}.png", count=4)
        write_psnr(run, psnr_by_subject)
        if is_encoder_frozen:
            scale = encoder["scaling_factor"]
        else:
            vae.load_state_dict(average.state_dict())
            scale, deviations = compute_scale(average)
            print("scaling_factor", scale, "deviation by channel", deviations)
        average.register_to_config(scaling_factor=scale)
        save_model(average, run.output)
        run.finish(psnr_db=psnr_by_subject, million_parameters=count_millions(vae), scaling_factor=scale)


def write_psnr(run: Run, psnr_by_subject: dict[str, float]) -> None:
    mean = round(np.mean([*psnr_by_subject.values()]), 2)
    row = {"step": run.steps, "minutes": round(run.spent_minutes, 1), "mean": mean}
    with (run.output / "psnr.jsonl").open("a") as file:
        file.write(json.dumps(row | psnr_by_subject) + "\n")


if __name__ == "__main__":
    main()
