"""Train the bundled model's ControlNet for canny edges, on top of the finished denoiser, which stays as it is.

    python -m ppdiffusers_tome.tools.training.train_controlnet --text runs/text --vae runs/vae \
        --unet runs/unet --output runs/controlnet

Shapes lie further from their usual places than in the denoiser's training, so that only the edges can tell where.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import cv2
import numpy as np
import torch
from diffusers import AutoencoderKL, ControlNetModel, DDIMScheduler, UNet2DConditionModel
from torch.nn import functional as F

from ppdiffusers_tome.tools.bundled import scenes
from ppdiffusers_tome.tools.training.common import Log, decayed, start
from ppdiffusers_tome.tools.training.train_text_encoder import encode
from ppdiffusers_tome.tools.training.train_unet import load_text, noised

EDGE_CHANNELS = (8, 16, 32, 64)


def edges_of(picture: np.ndarray) -> np.ndarray:
    """Canny edges with the thresholds of ``ppdiffusers-tome generate``; uint8 ``[height, width]``."""
    return cv2.Canny((picture * 255).astype(np.uint8), 100, 200)


def as_control(edges: np.ndarray) -> torch.Tensor:
    """uint8 ``[batch, height, width]`` -> float32 ``[batch, 3, height, width]`` in [0, 1]."""
    return torch.from_numpy(edges).float().div(255)[:, None].expand(-1, 3, -1, -1)


@torch.no_grad()
def make_pairs(
    rng: np.random.Generator, vae: AutoencoderKL, count: int, size: int
) -> tuple[torch.Tensor, np.ndarray, list[str]]:
    """Scaled latents, edges (uint8, as they take eight times the memory of latents) and prompts."""
    latents: list[torch.Tensor] = []
    edges: list[torch.Tensor] = []
    prompts: list[str] = []
    while len(prompts) < count:
        scene = scenes.random_scene(rng, spread=float(rng.uniform(0.04, 0.1)))
        if scene.held_out:
            continue
        picture = scenes.render(scene, size)
        pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] * 2 - 1
        with torch.autocast("cpu", torch.bfloat16):
            mean = vae.encode(pixels).latent_dist.mean.float()
        latents.append(mean * vae.config.scaling_factor)
        edges.append(edges_of(picture))
        prompts.append(scene.prompt)
    return torch.cat(latents), np.stack(edges), prompts


@torch.no_grad()
def wake(embedding: torch.nn.Module, edges: torch.Tensor) -> None:
    """Scale the convolutions that read the edges so that each one's output varies by about one.

    Edges are thin: one pixel in 300 is set. With usual initial weights what is left of them behind eight layers is a
    thousand times smaller than the latent that it is added to, and after a thousand steps nothing was learned.
    (All you need is a good init, Mishkin & Matas 2016, section 3.)

    Args:
        embedding: the ControlNet's ``controlnet_cond_embedding``.
        edges: ``[batch, 3, height, width]`` in [0, 1].
    """
    hidden = edges
    for layer in (embedding.conv_in, *embedding.blocks):
        layer.weight.div_(layer(hidden).std())
        hidden = F.silu(layer(hidden))


def save(controlnet: ControlNetModel, output: Path) -> None:
    """Save a copy whose memory lies as files want it."""
    copy.deepcopy(controlnet).to(memory_format=torch.contiguous_format).save_pretrained(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("text", "vae", "unet", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--stages", default="256:8:16:1200:1e-3,512:12:4:500:5e-4",
                        help="size:minutes:batch:pictures:rate, one after another")
    parser.add_argument("--resume", help="folder of a ControlNet to start from")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, output = start(args.seed, args.output)
    tokenizer, text_encoder = load_text(args.text)
    vae = AutoencoderKL.from_pretrained(args.vae).eval()
    unet = UNet2DConditionModel.from_pretrained(args.unet).requires_grad_(False)
    scheduler = DDIMScheduler.from_pretrained(args.unet + "/scheduler")
    if args.resume:
        controlnet = ControlNetModel.from_pretrained(args.resume)
    else:
        controlnet = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=EDGE_CHANNELS)
        controlnet.requires_grad_(True)
        wake(controlnet.controlnet_cond_embedding, as_control(make_pairs(rng, vae, 8, 512)[1]))
    unet, controlnet = (model.to(memory_format=torch.channels_last) for model in (unet, controlnet))
    with torch.no_grad():
        unprompted = text_encoder(encode(tokenizer, [""]))[0]
    for stage in args.stages.split(","):
        size, minutes, count, pictures, rate = (float(v) for v in stage.split(":"))
        size, count = int(size), int(count)
        latents, edges, prompts = make_pairs(rng, vae, int(pictures), size)
        ids = encode(tokenizer, prompts)
        optimiser = torch.optim.AdamW(controlnet.parameters(), lr=rate, weight_decay=1e-3, betas=(0.9, 0.99))
        log = Log(output, minutes)
        while log.running:
            chosen = rng.integers(0, len(latents), count)
            with torch.no_grad():
                text = text_encoder(ids[chosen])[0]
                # Dropped more often than for the denoiser: without words, only the edges are left to learn from.
                text = torch.where((torch.rand(count) < 0.25)[:, None, None], unprompted, text)
            noisy, timesteps, velocity = noised(scheduler, latents[chosen])
            control = as_control(edges[chosen])
            for group in optimiser.param_groups:
                group["lr"] = decayed(rate, log, warmup_steps=50)
            with torch.autocast("cpu", torch.bfloat16):
                down, mid = controlnet(noisy, timesteps, text, control, return_dict=False)
                predicted = unet(
                    noisy, timesteps, text, return_dict=False,
                    down_block_additional_residuals=down, mid_block_additional_residual=mid,
                )[0].float()
            loss = F.mse_loss(predicted, velocity)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(controlnet.parameters(), 1.0)
            optimiser.step()
            log.step(size=size, loss=loss.item())
            if log.due:
                save(controlnet, output)
        save(controlnet, output)


if __name__ == "__main__":
    main()
