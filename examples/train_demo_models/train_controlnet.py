"""Train the small model's ControlNet for Canny edges; its UNet stays frozen.

    python examples/train_demo_models/train_controlnet.py --text runs/text --vae runs/vae \
        --unet runs/unet --output runs/controlnet

Edges determine the subject and its view: position and size. As a prompt names the subject too, most images are trained
without one.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from denoiser_training import load_latents, make_denoiser_parser, train
from diffusers import ControlNetModel, UNet2DConditionModel
from latents import Latents
from photographs import SUBJECTS
from torch import nn
from torch.nn import functional as F
from train_unet import Prompts
from views import render_view

EDGE_CHANNELS = (8, 16, 32, 64)
STAGES = "512:25:4:1e-3:16,512:4:4:3e-4"
# Far more often than for the UNet: with a prompt, little is left to learn. At 0.25, edges alone produced two of the ten
# subjects after 14 minutes; after 26 more minutes at this fraction, all.
UNPROMPTED = 0.75


def detect_edges(image: np.ndarray) -> np.ndarray:
    """Return Canny edges by the thresholds of ``ppdiffusers-tome generate``, uint8 ``[height, width]``."""
    return cv2.Canny((image * 255).astype(np.uint8), 100, 200)


def make_control(latents: Latents, indices: np.ndarray, size: int) -> torch.Tensor:
    """Return the edges of these views, float32 ``[batch, 3, size, size]`` in [0, 1]."""
    indices = np.where(indices < 0, -1 - indices, indices)
    images = [render_view(SUBJECTS[latents.subjects[index]], latents.views[index], size) for index in indices]
    edges = np.stack([detect_edges(image) for image in images])
    return torch.from_numpy(edges).float().div(255)[:, None].expand(-1, 3, -1, -1)


@torch.no_grad()
def scale_embedding(embedding: nn.Module, edges: torch.Tensor) -> None:
    """Scale the convolutions that read the edges to outputs of unit variance.

    Edges are thin. With the usual initial weights their signal after eight layers is a thousand times smaller than the
    latent that it is added to, and a thousand steps taught nothing. (All you need is a good init, Mishkin & Matas 2016,
    section 3.)

    Args:
        embedding: the ControlNet's ``controlnet_cond_embedding``.
        edges: ``[batch, 3, height, width]`` in [0, 1].
    """
    hidden = edges
    for layer in (embedding.conv_in, *embedding.blocks):
        layer.weight.div_(layer(hidden).std())
        hidden = F.silu(layer(hidden))


def main() -> None:
    args = make_denoiser_parser(__doc__, STAGES, "text", "unet").parse_args()
    latents = load_latents(args)
    prompts = Prompts(args.text, latents)
    torch.manual_seed(args.seed)
    unet = UNet2DConditionModel.from_pretrained(args.unet).requires_grad_(False)
    controlnet = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=EDGE_CHANNELS)
    controlnet.requires_grad_(True)
    scale_embedding(controlnet.controlnet_cond_embedding, make_control(latents, np.arange(len(SUBJECTS)), 512))
    unet = unet.to(memory_format=torch.channels_last)

    def predict(
        model: nn.Module, noisy: torch.Tensor, timesteps: torch.Tensor, indices: np.ndarray, size: int
    ) -> torch.Tensor:
        text = prompts.encode(indices)
        down, mid = model(noisy, timesteps, text, make_control(latents, indices, size), return_dict=False)
        return unet(
            noisy, timesteps, text, return_dict=False,
            down_block_additional_residuals=down, mid_block_additional_residual=mid,
        )[0]

    train(args, controlnet, latents, predict, UNPROMPTED, frozen=[unet])


if __name__ == "__main__":
    main()
