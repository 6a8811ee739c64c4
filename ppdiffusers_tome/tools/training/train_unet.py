"""Train the bundled model's denoiser: a UNet2DConditionModel on the autoencoder's latents of photographs.

    python -m ppdiffusers_tome.tools.training.train_unet --text runs/text --vae runs/vae --output runs/unet

Stages of growing size, as Stable Diffusion itself was trained: 256x256 and 512x512 pixels (latents of 32x32 and
64x64). The first learns what words mean and where things lie, cheaply; the last the size at which the model is used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel, CLIPTokenizer

from ppdiffusers_tome.tools.bundled.photographs import SUBJECTS, prompt_of
from ppdiffusers_tome.tools.training.denoising import denoiser_parser, load_latents, train
from ppdiffusers_tome.tools.training.latents import Latents
from ppdiffusers_tome.tools.training.train_text_encoder import encode

# Half of the model's work is self-attention at the finest level: two layers in each of its blocks, heads of 64
# channels. What merging costs is to be seen on a model that leans on what is merged.
CONFIG = dict(
    sample_size=64,
    in_channels=4,
    out_channels=4,
    block_out_channels=(64, 96, 160, 160),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    layers_per_block=1,
    transformer_layers_per_block=(2, 1, 1, 1),
    attention_head_dim=(1, 2, 4, 4),  # by its name's mistake the number of heads
    cross_attention_dim=128,
    norm_num_groups=16,
)
STAGES = "256:80:12:1e-3,512:70:4:4e-4"


class Prompts:
    """The hidden states of every view's prompt; the text encoder is frozen, so they are made once."""

    @torch.no_grad()
    def __init__(self, text: Path, latents: Latents) -> None:
        tokenizer = CLIPTokenizer.from_pretrained(text / "tokenizer")
        encoder = CLIPTextModel.from_pretrained(text / "text_encoder").eval()
        prompts = [prompt_of(subject, mirrored) for mirrored in (False, True) for subject in SUBJECTS]
        self.hidden = encoder(encode(tokenizer, [*prompts, ""]))[0]
        mirrored = np.array([view.mirrored for view in latents.views])
        self.rows = latents.subjects + len(SUBJECTS) * mirrored

    def __call__(self, places: np.ndarray) -> torch.Tensor:
        """``[batch, tokens, channels]`` for views at these places; below 0 is unprompted."""
        rows = np.where(places < 0, len(self.hidden) - 1, self.rows[np.maximum(places, 0)])
        return self.hidden[torch.from_numpy(rows)]


def main() -> None:
    args = denoiser_parser(__doc__, STAGES, "text").parse_args()
    latents = load_latents(args)
    prompts = Prompts(args.text, latents)
    torch.manual_seed(args.seed)

    def predict(
        unet: nn.Module, noisy: torch.Tensor, timesteps: torch.Tensor, places: np.ndarray, size: int
    ) -> torch.Tensor:
        return unet(noisy, timesteps, prompts(places), return_dict=False)[0]

    train(args, UNet2DConditionModel(**CONFIG), latents, predict)


if __name__ == "__main__":
    main()
