"""Train the second bundled model: a diffusion transformer for ppdiffusers' DiTPipeline, with subjects as class labels.

    python examples/train_demo_models/train_dit.py --vae runs/vae --output runs/dit

It draws the same photographs on the same latents as the UNet, in patches of 2x2: 1,024 tokens at 512x512 pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from denoising import denoiser_parser, load_latents, train
from diffusers import DiTTransformer2DModel
from torch import nn

UNLABELLED = 1000  # the label that DiTPipeline takes for "none"
CONFIG = dict(
    num_attention_heads=5,
    attention_head_dim=32,
    in_channels=4,
    out_channels=8,  # the second half stands for a learned variance, which the pipeline drops: not trained here
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
    """Begin with blocks that change nothing, as the paper does (Peebles & Xie 2023, section 3.2: adaLN-Zero)."""
    for block in model.transformer_blocks:
        nn.init.zeros_(block.norm1.linear.weight)
        nn.init.zeros_(block.norm1.linear.bias)
    for layer in (model.proj_out_1, model.proj_out_2):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)


def main() -> None:
    args = denoiser_parser(__doc__, STAGES).parse_args()
    if args.mirror:
        raise SystemExit("labels name subjects alone; leave --mirror out")
    latents = load_latents(args)
    torch.manual_seed(args.seed)
    # In training mode every block would drop the label by a coin of its own; here it is dropped for all or none.
    model = DiTTransformer2DModel(**CONFIG).eval()
    initialise(model)

    def predict(
        dit: nn.Module, noisy: torch.Tensor, timesteps: torch.Tensor, places: np.ndarray, size: int
    ) -> torch.Tensor:
        labels = np.where(places < 0, UNLABELLED, latents.subjects[np.maximum(places, 0)])
        return dit(noisy, timesteps, torch.from_numpy(labels), return_dict=False)[0][:, :4]

    train(args, model, latents, predict, adamw=True)


if __name__ == "__main__":
    main()
