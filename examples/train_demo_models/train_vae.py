"""Train the bundled models' autoencoder: 512x512x3 photographs to 64x64x4 latents and back.

    python examples/train_demo_models/train_vae.py --output runs/vae --part encoder --minutes 15
    python examples/train_demo_models/train_vae.py --output runs/vae --part decoder --minutes 14

Three of the four latent channels are pulled towards the mean colour of their 8x8 patch: such latents are smooth, and
the denoiser learns on them several times as fast. What they do not tell of the few photographs, the decoder remembers.
Both learn at first, on parts of views, which are cheap and many. Then the encoder is frozen: what it makes is simple
and settled early, denoisers can begin on its latents, and a step of the decoder alone takes two thirds of the time.
Whole views come last, because group normalisation sees other statistics there.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from common import (
    autocast,
    average,
    averaged_copy,
    decayed,
    make_parser,
    millions,
    save,
    step,
    warmed,
)
from diffusers import AutoencoderKL
from run import Run
from sheets import psnr, to_pictures, to_pixels, write_sheet
from stages import finished_stages
from torch.nn import functional as F
from views import held_out_views, random_view, render_view

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS

CONFIG = dict(
    block_out_channels=(16, 32, 64, 128),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=1,
    norm_num_groups=8,
    latent_channels=4,
    sample_size=512,
)
WIDTH = 1.5  # of views: wider than the denoiser's, which may then be widened without training this again
RATE = 1.5e-3
# Up to which share of the budget: pieces of so many pixels, and how many a step.
PIECES = {
    "encoder": ((1.0, 128, 4),),
    "decoder": ((0.5, 128, 4), (0.82, 256, 1), (1.0, 512, 1)),
}
LOOK_MINUTES = 10.0
# The subjects with most detail, which came back worst, are shown so many times as often.
SHOWN_MORE = {"motorcycle": 3.0, "astronaut": 2.0, "coffee": 1.5}
SHARES = np.array([SHOWN_MORE.get(subject.name, 1.0) for subject in SUBJECTS])


def batch_of_parts(rng: np.random.Generator, count: int, size: int) -> torch.Tensor:
    """``[count, 3, size, size]`` in [-1, 1]: square parts of views of 512 pixels."""
    pictures = []
    for subject in rng.choice(len(SHARES), count, replace=False, p=SHARES / SHARES.sum()):
        view = random_view(rng, WIDTH, mirror=True)
        share = size / 512
        x, y = rng.uniform(0, 1 - share, 2)
        pictures.append(render_view(SUBJECTS[subject], view, size, (x, y, share)))
    return to_pixels(np.stack(pictures))


def edges(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]


def dissimilarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """1 - SSIM of the grey pictures, in even windows of 8x8 pixels."""
    a, b = (x.mean(1, keepdim=True) / 2 for x in (a, b))
    mean_a, mean_b, squares_a, squares_b, product = (
        F.avg_pool2d(x, 8, stride=4) for x in (a, b, a * a, b * b, a * b)
    )
    spread_a, spread_b = squares_a - mean_a**2, squares_b - mean_b**2
    shared = product - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + 0.01**2) / (mean_a**2 + mean_b**2 + 0.01**2)
    return 1 - (luminance * (2 * shared + 0.03**2) / (spread_a + spread_b + 0.03**2)).mean()


def losses(vae: AutoencoderKL, picture: torch.Tensor) -> dict[str, torch.Tensor]:
    with autocast():
        with torch.set_grad_enabled(any(p.requires_grad for p in vae.encoder.parameters())):
            mean = vae.encode(picture).latent_dist.mean.float()
        # Noise on the latents makes the decoder forgive the denoiser's small errors.
        decoded = vae.decode(mean + 0.06 * torch.randn_like(mean)).sample.float()
    colours = F.avg_pool2d(picture, 8) * 1.5
    parts = {
        "pixel": F.l1_loss(decoded, picture),
        "square": F.mse_loss(decoded, picture),
        "edge": sum(F.l1_loss(a, b) for a, b in zip(edges(decoded), edges(picture), strict=True)),
        "ssim": dissimilarity(decoded, picture),
        "anchor": F.mse_loss(mean[:, :3], colours),
        "size": mean[:, 3].square().mean(),
    }
    weights = {"pixel": 1.0, "square": 1.0, "edge": 0.5, "ssim": 0.05, "anchor": 0.1, "size": 0.005}
    return {"loss": sum(weights[name] * part for name, part in parts.items()), **parts}


@torch.no_grad()
def look(vae: AutoencoderKL, sheet: Path, count: int = 1) -> dict[str, float]:
    """PSNR of held-out views by subject, each the mean of ``count``, and a sheet of the first."""
    found: dict[str, float] = {}
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for subject in SUBJECTS:
        scores = []
        for index, view in enumerate(held_out_views(count, WIDTH, mirror=True)):
            picture = render_view(subject, view)
            with autocast():
                latent = vae.encode(to_pixels(picture[None])).latent_dist.mean
                decoded = to_pictures(vae.decode(latent).sample)[0]
            scores.append(psnr(picture, decoded))
            if index == 0:
                rows[0].append(picture)
                rows[1].append(decoded)
        found[subject.name] = round(float(np.mean(scores)), 2)
    write_sheet(sheet, [np.stack(row) for row in rows])
    print(found, flush=True)
    return found


@torch.no_grad()
def scale_of(vae: AutoencoderKL) -> tuple[float, list[float]]:
    """The factor that gives latents unit variance, as ``scaling_factor`` promises, and the deviation by channel."""
    rng = np.random.default_rng(0)
    latents = torch.cat([vae.encode(batch_of_parts(rng, 1, 512)).latent_dist.mean for _ in range(30)])
    return round(1.0 / latents.std().item(), 4), [round(v, 3) for v in latents.std((0, 2, 3)).tolist()]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=tuple(PIECES), required=True, help="both learn as the encoder's part")
    parser.add_argument("--minutes", type=float, required=True)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    vae = AutoencoderKL(**CONFIG)
    averaged = averaged_copy(vae).eval()
    vae = vae.to(memory_format=torch.channels_last)
    settled = args.part == "decoder"
    encoder = finished_stages(args.output).get("encoder", {})
    if settled:
        if not encoder:
            raise SystemExit(f"the encoder in {args.output} is not finished; begin with --part encoder")
        for each in (vae.encoder, vae.quant_conv):
            each.requires_grad_(False)
    learning = [p for p in vae.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(learning, lr=RATE, weight_decay=1e-4, betas=(0.9, 0.98))
    run = Run(args.output, args.part, args.minutes, args.seed, model=vae, averaged=averaged, optimiser=optimiser)
    print(f"{millions(vae)} million parameters", flush=True)
    looked = run.spent_minutes
    while run.running:
        rng = run.chance()
        size, count = next(piece for until, *piece in PIECES[args.part] if run.progress < until or until == 1)
        parts = losses(vae, batch_of_parts(rng, count, size).contiguous(memory_format=torch.channels_last))
        step(parts["loss"], optimiser, decayed(RATE, run) if settled else warmed(RATE, run))
        average(averaged, vae, run.steps)
        run.step(side=size, **{name: value.item() for name, value in parts.items()})
        if run.spent_minutes - looked > LOOK_MINUTES:
            looked = run.spent_minutes
            note_psnr(run, look(averaged, run.output / "sheets" / f"{args.part}-{run.steps:06d}.png"))
    if not run.finished:
        found = look(averaged, run.output / "sheets" / f"{args.part}.png", count=4)
        note_psnr(run, found)
        if not settled:
            vae.load_state_dict(averaged.state_dict())
            scale, deviations = scale_of(averaged)
            print("scaling_factor", scale, "deviation by channel", deviations)
        else:
            scale = encoder["scaling_factor"]
        averaged.register_to_config(scaling_factor=scale)
        save(averaged, run.output)
        run.finish(psnr_db=found, million_parameters=millions(vae), scaling_factor=scale)


def note_psnr(run: Run, found: dict[str, float]) -> None:
    row = {"step": run.steps, "minutes": round(run.spent_minutes, 1), "mean": round(np.mean([*found.values()]), 2)}
    with (run.output / "psnr.jsonl").open("a") as file:
        file.write(json.dumps(row | found) + "\n")


if __name__ == "__main__":
    main()
