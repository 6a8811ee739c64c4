"""Train the bundled model's ControlNet for canny edges, on top of the finished denoiser, which stays as it is.

    python examples/train_demo_models/train_controlnet.py --text runs/text --vae runs/vae \
        --unet runs/unet --output runs/controlnet

Edges tell the subject, and which view of it is asked: where it lies, and how near it is. So it is trained mostly
without words, which tell the subject too.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from denoising import denoiser_parser, load_latents, train
from diffusers import ControlNetModel, UNet2DConditionModel
from latents import Latents
from torch import nn
from torch.nn import functional as F
from train_unet import Prompts
from views import render_view

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS

EDGE_CHANNELS = (8, 16, 32, 64)
STAGES = "512:25:4:1e-3:16,512:4:4:3e-4"
# Unprompted far more often than the denoiser is: with words it has little left to learn. At 0.25, edges alone told two
# of ten subjects after 14 minutes; after 26 more at this share, all.
UNPROMPTED = 0.75


def edges_of(picture: np.ndarray) -> np.ndarray:
    """Canny edges with the thresholds of ``ppdiffusers-tome generate``; uint8 ``[height, width]``."""
    return cv2.Canny((picture * 255).astype(np.uint8), 100, 200)


def control_of(latents: Latents, places: np.ndarray, size: int) -> torch.Tensor:
    """The edges of the views at these places, float32 ``[batch, 3, size, size]`` in [0, 1]."""
    places = np.where(places < 0, -1 - places, places)
    drawn = [render_view(SUBJECTS[latents.subjects[place]], latents.views[place], size) for place in places]
    edges = np.stack([edges_of(picture) for picture in drawn])
    return torch.from_numpy(edges).float().div(255)[:, None].expand(-1, 3, -1, -1)


@torch.no_grad()
def wake(embedding: nn.Module, edges: torch.Tensor) -> None:
    """Scale the convolutions that read the edges so that each one's output varies by about one.

    Edges are thin. With usual initial weights what is left of them behind eight layers is a thousand times smaller
    than the latent that it is added to, and after a thousand steps nothing was learned. (All you need is a good init,
    Mishkin & Matas 2016, section 3.)

    Args:
        embedding: the ControlNet's ``controlnet_cond_embedding``.
        edges: ``[batch, 3, height, width]`` in [0, 1].
    """
    hidden = edges
    for layer in (embedding.conv_in, *embedding.blocks):
        layer.weight.div_(layer(hidden).std())
        hidden = F.silu(layer(hidden))


def main() -> None:
    args = denoiser_parser(__doc__, STAGES, "text", "unet").parse_args()
    latents = load_latents(args)
    prompts = Prompts(args.text, latents)
    torch.manual_seed(args.seed)
    unet = UNet2DConditionModel.from_pretrained(args.unet).requires_grad_(False)
    controlnet = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=EDGE_CHANNELS)
    controlnet.requires_grad_(True)
    wake(controlnet.controlnet_cond_embedding, control_of(latents, np.arange(len(SUBJECTS)), 512))
    unet = unet.to(memory_format=torch.channels_last)

    def predict(
        guide: nn.Module, noisy: torch.Tensor, timesteps: torch.Tensor, places: np.ndarray, size: int
    ) -> torch.Tensor:
        text = prompts(places)
        down, mid = guide(noisy, timesteps, text, control_of(latents, places, size), return_dict=False)
        return unet(
            noisy, timesteps, text, return_dict=False,
            down_block_additional_residuals=down, mid_block_additional_residual=mid,
        )[0]

    train(args, controlnet, latents, predict, UNPROMPTED, frozen=[unet])


if __name__ == "__main__":
    main()
