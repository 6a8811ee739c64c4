"""Train the second small model: a class-conditional diffusion transformer (DiT).

    python examples/train_demo_models/train_dit.py --vae runs/vae --output runs/dit

It runs in ppdiffusers' DiTPipeline, with the subjects as class labels, and learns the same latents as the UNet, in
patches of 2x2: 1,024 tokens at 512x512 pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from denoiser_training import load_latents, make_denoiser_parser, train
from diffusers import DiTTransformer2DModel
from torch import nn

UNLABELLED = 1000  # the label that DiTPipeline uses for "none"
CONFIG = dict(
    num_attention_heads=5,
    attention_head_dim=32,
    in_channels=4,
    out_channels=8,  # the second half is a learned variance, which the pipeline drops: not trained here
    num_layers=6,
    sample_size=64,
    patch_size=2,
    activation_fn="gelu-approximate",
    num_embeds_ada_norm=UNLABELLED,
    norm_type="ada_norm_zero",
    norm_elementwise_affine=False,
)
STAGES = "256:18:12:1.5e-3,512:38:6:7e-4"


def initialise(model: DiTTransformer2DModel) -> None:
    """Initialise all blocks to the identity (adaLN-Zero; Peebles & Xie 2023, section 3.2)."""
    for block in model.transformer_blocks:
        nn.init.zeros_(block.norm1.linear.weight)
        nn.init.zeros_(block.norm1.linear.bias)
    for layer in (model.proj_out_1, model.proj_out_2):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)


def main() -> None:
    args = make_denoiser_parser(__doc__, STAGES).parse_args()
    if args.mirror:
        raise SystemExit("labels name subjects alone; omit --mirror")
    latents = load_latents(args)
    torch.manual_seed(args.seed)
    # In training mode every block would drop the label at random by itself; here all blocks drop it or none.
    model = DiTTransformer2DModel(**CONFIG).eval()
    initialise(model)

    def predict(
        model: nn.Module, noisy: torch.Tensor, timesteps: torch.Tensor, indices: np.ndarray, size: int
    ) -> torch.Tensor:
        labels = np.where(indices < 0, UNLABELLED, latents.subjects[np.maximum(indices, 0)])
        return model(noisy, timesteps, torch.from_numpy(labels), return_dict=False)[0][:, :4]

    train(args, model, latents, predict, adamw=True)


if __name__ == "__main__":
    main()
