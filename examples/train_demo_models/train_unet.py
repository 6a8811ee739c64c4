"""Train the small model's denoiser: a UNet2DConditionModel on latents of photographs.

    python examples/train_demo_models/train_unet.py --text runs/text --vae runs/vae --output runs/unet

The model grows, as progressive GANs do (Karras et al. 2018, section 2): three levels learn on noisy 64x64 latents that
are pooled to 32x32; then all four learn on the unpooled latents.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from denoiser_training import load_latents, make_denoiser_parser, train
from diffusers import UNet2DConditionModel
from finest_level import add_finest_level
from latents import Latents
from photographs import SUBJECTS
from torch import nn
from train_text_encoder import tokenize
from transformers import CLIPTextModel, CLIPTokenizer
from views import make_prompt

# Three levels of 32x32 to 8x8 first learn the words and the positions of objects. Then a finest level is added. Its
# attention, where merging saves most, learns before its convolutions: the model relies on it, so merging has a visible
# cost.
SMALL = dict(
    sample_size=32,
    in_channels=4,
    out_channels=4,
    block_out_channels=(96, 160, 160),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    layers_per_block=1,
    attention_head_dim=(2, 4, 4),  # despite its name the number of heads
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
POOL = 2
SMALL_STAGES = "512:22:12:1.5e-3"
# These stages were never run as a whole with Muon; for the training that was, see README.md beside it.
STAGES = "512:28:8:1e-3:16,512:20:6:1e-3:16,512:45:6:1e-3:16,512:6:4:3e-4"


class Prompts:
    """The hidden states of every view's prompt, computed once."""

    @torch.no_grad()
    def __init__(self, text: Path, latents: Latents) -> None:
        tokenizer = CLIPTokenizer.from_pretrained(text / "tokenizer")
        encoder = CLIPTextModel.from_pretrained(text / "text_encoder").eval()
        prompts = [make_prompt(subject, mirrored) for mirrored in (False, True) for subject in SUBJECTS]
        self._hidden = encoder(tokenize(tokenizer, [*prompts, ""]))[0]
        mirrored = np.array([view.mirrored for view in latents.views])
        self._rows = latents.subjects + len(SUBJECTS) * mirrored

    def encode(self, indices: np.ndarray) -> torch.Tensor:
        """Return ``[batch, tokens, channels]`` for these views; below 0 is unprompted."""
        rows = np.where(indices < 0, len(self._hidden) - 1, self._rows[np.maximum(indices, 0)])
        return self._hidden[torch.from_numpy(rows)]


def main() -> None:
    parser = make_denoiser_parser(__doc__, STAGES, "text")
    parser.add_argument("--small-stages", default=SMALL_STAGES, help="the same for the model without its finest level")
    args = parser.parse_args()
    latents = load_latents(args)
    prompts = Prompts(args.text, latents)
    torch.manual_seed(args.seed)

    def predict(
        model: nn.Module, noisy: torch.Tensor, timesteps: torch.Tensor, indices: np.ndarray, size: int
    ) -> torch.Tensor:
        return model(noisy, timesteps, prompts.encode(indices), return_dict=False)[0]

    small_args = argparse.Namespace(**vars(args) | {"output": args.output / "small", "stages": args.small_stages})
    train(small_args, UNet2DConditionModel(**SMALL), latents, predict, pool=POOL)
    unet = UNet2DConditionModel(**CONFIG)
    add_finest_level(UNet2DConditionModel.from_pretrained(small_args.output), unet)
    train(args, unet, latents, predict)


if __name__ == "__main__":
    main()
