"""Train the bundled model's autoencoder: 512x512x3 pictures to 64x64x4 latents and back.

    python -m ppdiffusers_tome.tools.training.train_vae --output runs/vae --minutes 20

Scenes are drawn at several sizes and cropped, so that the network sees edges at every scale it will meet.
Three of the four latent channels are pulled towards the mean colour of their 8x8 patch: such latents are smooth,
and the denoiser learns on them several times as fast. The last tenth of the time goes to whole 512x512 pictures,
because group normalisation sees other statistics there than in a crop.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch.nn import functional as F

from ppdiffusers_tome.tools.bundled import scenes
from ppdiffusers_tome.tools.training.common import Log, decayed, start

CONFIG = dict(
    block_out_channels=(16, 32, 64, 96),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=1,
    norm_num_groups=8,
    latent_channels=4,
    sample_size=512,
)


def batch_of_crops(rng: np.random.Generator, count: int, crop: int) -> torch.Tensor:
    """``[count, 3, crop, crop]`` in [-1, 1]: crops of scenes drawn at 1 to 4 times the crop's size, at most 512."""
    pictures = []
    for _ in range(count):
        size = min(512, int(crop * rng.choice([1.0, 2.0, 3.0, 4.0])))
        picture = scenes.render(scenes.random_scene(rng), size)
        top, left = rng.integers(0, size - crop + 1, 2)
        pictures.append(picture[top : top + crop, left : left + crop])
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) * 2 - 1


def edges(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--crop", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, output = start(args.seed, args.output)
    vae = AutoencoderKL(**CONFIG)
    optimiser = torch.optim.AdamW(vae.parameters(), lr=2e-3, weight_decay=1e-4, betas=(0.9, 0.98))
    log = Log(output, args.minutes)
    while log.running:
        whole = log.progress > 0.9
        picture = batch_of_crops(rng, 1 if whole else args.batch, 512 if whole else args.crop)
        for group in optimiser.param_groups:
            group["lr"] = decayed(2e-3, log)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = vae.encode(picture).latent_dist
            mean = posterior.mean.float()
            # Noise on the latents makes the decoder forgive the denoiser's small errors.
            decoded = vae.decode(mean + 0.08 * torch.randn_like(mean)).sample.float()
        colours = F.avg_pool2d(picture, 8) * 1.5
        pixel = F.l1_loss(decoded, picture)
        edge = sum(F.l1_loss(a, b) for a, b in zip(edges(decoded), edges(picture), strict=True))
        anchor = F.mse_loss(mean[:, :3], colours)
        size = mean[:, 3].square().mean()
        loss = pixel + edge + 0.2 * anchor + 0.01 * size
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        log.step(loss=loss.item(), pixel=pixel.item(), edge=edge.item(), anchor=anchor.item())
        if log.due:
            vae.save_pretrained(output)
    # The scale that gives latents unit variance, as `scaling_factor` promises the denoiser.
    vae.eval()
    with torch.no_grad():
        latents = torch.cat([vae.encode(batch_of_crops(rng, 1, 512)).latent_dist.mean for _ in range(32)])
        vae.register_to_config(scaling_factor=round(1.0 / latents.std().item(), 4))
    vae.save_pretrained(output)
    print("scaling_factor", vae.config.scaling_factor, "per channel", latents.std((0, 2, 3)), latents.mean((0, 2, 3)))


if __name__ == "__main__":
    main()
