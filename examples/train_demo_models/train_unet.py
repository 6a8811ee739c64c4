"""Train the bundled model's denoiser: a UNet2DConditionModel on the autoencoder's latents of photographs.

    python examples/train_demo_models/train_unet.py --text runs/text --vae runs/vae --output runs/unet

A model that grows, as progressive GANs do (Karras et al. 2018, section 2): three levels learn on noisy latents of 64x64
that are pooled to 32x32, and the fourth, finest, with them on the whole.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from denoising import denoiser_parser, load_latents, train
from diffusers import UNet2DConditionModel
from grown import grow
from latents import Latents
from torch import nn
from train_text_encoder import encode
from transformers import CLIPTextModel, CLIPTokenizer
from views import prompt_of_view

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS

# Three levels of 32x32 to 8x8 learn first what words mean and where things lie. Then a finest level is put before them.
# Its attention, of which merging saves most, learns before its convolutions do, and the model leans on it: what merging
# costs is to be seen.
SMALL = dict(
    sample_size=32,
    in_channels=4,
    out_channels=4,
    block_out_channels=(96, 160, 160),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    layers_per_block=1,
    attention_head_dim=(2, 4, 4),  # by its name's mistake the number of heads
    cross_attention_dim=128,
    norm_num_groups=16,
)
CONFIG = SMALL | dict(
    sample_size=64,
    block_out_channels=(96, 96, 160, 160),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    attention_head_dim=(2, 2, 4, 4),
)
POOLED = 2
SMALL_STAGES = "512:22:12:1.5e-3"
# With Muon throughout this was not run as a whole; docs/en/results/bundled-model.md has what was.
STAGES = "512:28:8:1e-3:16,512:20:6:1e-3:16,512:45:6:1e-3:16,512:6:4:3e-4"


class Prompts:
    """The hidden states of every view's prompt; the text encoder is frozen, so they are made once."""

    @torch.no_grad()
    def __init__(self, text: Path, latents: Latents) -> None:
        tokenizer = CLIPTokenizer.from_pretrained(text / "tokenizer")
        encoder = CLIPTextModel.from_pretrained(text / "text_encoder").eval()
        prompts = [prompt_of_view(subject, mirrored) for mirrored in (False, True) for subject in SUBJECTS]
        self.hidden = encoder(encode(tokenizer, [*prompts, ""]))[0]
        mirrored = np.array([view.mirrored for view in latents.views])
        self.rows = latents.subjects + len(SUBJECTS) * mirrored

    def __call__(self, places: np.ndarray) -> torch.Tensor:
        """``[batch, tokens, channels]`` for views at these places; below 0 is unprompted."""
        rows = np.where(places < 0, len(self.hidden) - 1, self.rows[np.maximum(places, 0)])
        return self.hidden[torch.from_numpy(rows)]


def main() -> None:
    parser = denoiser_parser(__doc__, STAGES, "text")
    parser.add_argument("--small-stages", default=SMALL_STAGES, help="the same for the model without its finest level")
    args = parser.parse_args()
    latents = load_latents(args)
    prompts = Prompts(args.text, latents)
    torch.manual_seed(args.seed)

    def predict(
        unet: nn.Module, noisy: torch.Tensor, timesteps: torch.Tensor, places: np.ndarray, size: int
    ) -> torch.Tensor:
        return unet(noisy, timesteps, prompts(places), return_dict=False)[0]

    small_args = argparse.Namespace(**vars(args) | {"output": args.output / "small", "stages": args.small_stages})
    train(small_args, UNet2DConditionModel(**SMALL), latents, predict, pooled=POOLED)
    unet = UNet2DConditionModel(**CONFIG)
    grow(UNet2DConditionModel.from_pretrained(small_args.output), unet)
    train(args, unet, latents, predict)


if __name__ == "__main__":
    main()
