"""Train the bundled model's denoiser: a UNet2DConditionModel on the autoencoder's latents.

    python -m ppdiffusers_tome.tools.training.train_unet --text runs/text --vae runs/vae --output runs/unet

Three stages of growing size, as Stable Diffusion itself was trained: 128x128, 256x256 and 512x512 pixels (latents
of 16x16, 32x32 and 64x64). The first stages learn what words mean and where things go, cheaply; the last learns
the size at which the model is used. Latents of each stage are made once and kept; the noise is new at every step.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from torch.nn import functional as F
from transformers import CLIPTextModel, CLIPTokenizer

from ppdiffusers_tome.tools.bundled import scenes
from ppdiffusers_tome.tools.training.common import Log, decayed, start
from ppdiffusers_tome.tools.training.train_text_encoder import encode

CONFIG = dict(
    sample_size=64,
    in_channels=4,
    out_channels=4,
    block_out_channels=(48, 96, 128, 128),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    layers_per_block=1,
    attention_head_dim=(1, 2, 4, 4),
    cross_attention_dim=128,
    norm_num_groups=16,
)
# The noise goes to nearly nothing of the picture at the last timestep (signal 0.3%): with Stable Diffusion's own
# schedule a flat background's colour shows through the strongest noise, and the model learns to wait for it.
SCHEDULE = dict(
    num_train_timesteps=1000, beta_start=0.0006, beta_end=0.024, beta_schedule="linear",
    prediction_type="v_prediction", clip_sample=False, set_alpha_to_one=True, steps_offset=1,
    timestep_spacing="trailing",
)


def load_text(folder: str) -> tuple[CLIPTokenizer, CLIPTextModel]:
    tokenizer = CLIPTokenizer.from_pretrained(Path(folder) / "tokenizer")
    return tokenizer, CLIPTextModel.from_pretrained(Path(folder) / "text_encoder").eval()


@torch.no_grad()
def make_latents(rng: np.random.Generator, vae: AutoencoderKL, count: int, size: int) -> tuple[torch.Tensor, list[str]]:
    """``count`` scenes drawn at ``size`` pixels: scaled latents ``[count, 4, size/8, size/8]`` and prompts."""
    latents: list[torch.Tensor] = []
    prompts: list[str] = []
    group = max(1, 32 * 128 * 128 // size**2)
    while len(prompts) < count:
        drawn = [s for s in (scenes.random_scene(rng) for _ in range(group)) if not s.held_out]
        if not drawn:
            continue
        pictures = torch.from_numpy(np.stack([scenes.render(s, size) for s in drawn])).permute(0, 3, 1, 2) * 2 - 1
        with torch.autocast("cpu", torch.bfloat16):
            mean = vae.encode(pictures).latent_dist.mean.float()
        latents.append(mean * vae.config.scaling_factor)
        prompts += [s.prompt for s in drawn]
    return torch.cat(latents)[:count], prompts[:count]


def cached_latents(file: Path, rng: np.random.Generator, vae: AutoencoderKL, count: int, size: int) -> dict:
    """``make_latents``, kept in a file from one run to the next."""
    if not file.exists():
        latents, prompts = make_latents(rng, vae, count, size)
        torch.save({"latents": latents, "prompts": prompts}, file)
    return torch.load(file, weights_only=True)


def noised(
    scheduler: DDIMScheduler, latents: torch.Tensor, focus: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noisy latents, their timesteps and the velocity to predict.

    A share ``focus`` of the timesteps comes from where outlines are decided, a signal-to-noise ratio of 2 to 0.005:
    colours and places, decided before that, are learned long before shapes are.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--vae", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--stages", default="128:30:64:10000:1e-3,256:15:24:4000:6e-4,512:20:6:1500:4e-4",
                        help="size:minutes:batch:pictures:rate, one after another")
    parser.add_argument("--focus", type=float, default=0.0, help="share of timesteps from the middle of the schedule")
    parser.add_argument("--shrink-from", type=int, default=0, metavar="SIZE",
                        help="make smaller stages' latents by shrinking those of this size: no second encoding")
    parser.add_argument("--resume", help="folder of a UNet to start from")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, output = start(args.seed, args.output)
    tokenizer, text_encoder = load_text(args.text)
    vae = AutoencoderKL.from_pretrained(args.vae).eval()
    scheduler = DDIMScheduler(**SCHEDULE)
    unet = UNet2DConditionModel.from_pretrained(args.resume) if args.resume else UNet2DConditionModel(**CONFIG)
    averaged = copy.deepcopy(unet).requires_grad_(False)
    unet = unet.to(memory_format=torch.channels_last)  # a fifth faster on a CPU; what is saved stays contiguous
    print("million parameters", sum(p.numel() for p in unet.parameters()) / 1e6)
    with torch.no_grad():
        unprompted = text_encoder(encode(tokenizer, [""]))[0]
    for stage in args.stages.split(","):
        size, minutes, count, pictures, rate = (float(v) for v in stage.split(":"))
        size, count = int(size), int(count)
        made = cached_latents(output / f"latents-{max(size, args.shrink_from)}.pt", rng, vae, int(pictures),
                              max(size, args.shrink_from))
        latents, ids = made["latents"], encode(tokenizer, made["prompts"])
        if latents.shape[-1] != size // 8:
            latents = F.interpolate(latents, size=size // 8, mode="bilinear", antialias=True)
        optimiser = torch.optim.AdamW(unet.parameters(), lr=rate, weight_decay=1e-3, betas=(0.9, 0.99))
        log = Log(output, minutes)
        while log.running:
            chosen = torch.from_numpy(rng.integers(0, len(latents), count))
            with torch.no_grad():
                text = text_encoder(ids[chosen])[0]
                text = torch.where((torch.rand(count) < 0.1)[:, None, None], unprompted, text)
            noisy, timesteps, velocity = noised(scheduler, latents[chosen], args.focus)
            for group in optimiser.param_groups:
                group["lr"] = decayed(rate, log, warmup_steps=50)
            with torch.autocast("cpu", torch.bfloat16):
                predicted = unet(noisy, timesteps, text, return_dict=False)[0].float()
            loss = F.mse_loss(predicted, velocity)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
            optimiser.step()
            keep = min(0.998, log.steps / (log.steps + 10))
            torch._foreach_lerp_(list(averaged.parameters()), list(unet.parameters()), 1 - keep)
            log.step(size=size, loss=loss.item())
            if log.due:
                averaged.save_pretrained(output)
        averaged.save_pretrained(output)
        (output / "stages.json").write_text(json.dumps({"done": stage, "steps": log.steps}))
        unet.load_state_dict(averaged.state_dict())
    scheduler.save_pretrained(output / "scheduler")


if __name__ == "__main__":
    main()
