"""Train models on emoji from scratch: an autoencoder, then a denoiser on its latents.

    python examples/train_demo_models/train_emoji.py vae --images runs/emoji.npz --output runs/emoji --minutes 1.5
    python examples/train_demo_models/train_emoji.py dit --images runs/emoji.npz --output runs/emoji --minutes 6
    python examples/train_demo_models/train_emoji.py unet --images runs/emoji.npz --output runs/emoji --minutes 6

It needs PyTorch, diffusers' model classes, numpy and the file of ``emoji.py``, and from scratch an accelerator. It
resumes from its checkpoint: more minutes than before continue a training, whose learning rate then falls a second time.
``unet --start FOLDER`` starts from a trained model instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTTransformer2DModel, UNet2DConditionModel
from emoji_text import WIDTH, Text
from finest_level import CheapFinestLevel, add_finest_level, hold_coarser_levels
from muon import Muon
from precision import autocast
from safetensors.torch import load_file, save_file
from tokenizer_files import END, START
from torch import nn
from torch.nn import functional as F

CHECKPOINT_MINUTES = 1.0
ROW_STEPS = 20  # a row of the loss curve is the mean of this many steps
WARMUP_STEPS, RESTARTED_WARMUP_STEPS = 100, 20  # from scratch, and from a trained model
WINDOW = 16  # side of the windows, in tokens
PATCH = 4  # side of a latent's patch in pixels
UNLABELLED = 1000  # the label that DiTPipeline uses for "none"
VAE = dict(
    block_out_channels=(32, 48, 64), down_block_types=("DownEncoderBlock2D",) * 3,
    up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, norm_num_groups=8, latent_channels=4, sample_size=128,
)  # fmt: skip
# All blocks see 1,024 tokens of images of 128 pixels, a latent's pixel each.
DIT = dict(
    num_attention_heads=5, attention_head_dim=32, num_layers=7, in_channels=4, out_channels=4, patch_size=1,
    activation_fn="gelu-approximate", num_embeds_ada_norm=UNLABELLED, norm_type="ada_norm_zero",
    norm_elementwise_affine=False,
)  # fmt: skip
# The attention of the finest level sees 1,024 tokens of images of 128 pixels, that of the next one 256.
UNET = dict(
    block_out_channels=(64, 96, 128), layers_per_block=1, in_channels=4, out_channels=4,
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    attention_head_dim=(2, 3, 4),  # despite its name the number of heads
    cross_attention_dim=WIDTH, norm_num_groups=16,
)  # fmt: skip
LARGE_UNET = UNET | dict(  # with a finest level for images of 256 pixels, whose attention sees 4,096 tokens
    block_out_channels=(64, 64, 96, 128), attention_head_dim=(2, 2, 3, 4),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
)  # fmt: skip
COMMON = dict(num_train_timesteps=1000, clip_sample=False, prediction_type="epsilon")
SCHEDULES = {  # of DiT-XL/2 and of Stable Diffusion 1.5
    "dit": dict(COMMON, beta_start=0.0001, beta_end=0.02, beta_schedule="linear"),
    "unet": dict(
        COMMON, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", set_alpha_to_one=False,
        steps_offset=1,
    ),
}  # fmt: skip
UNPROMPTED = 0.1  # fraction of the examples
UNTURNED = ("clock", "button", "digit", "zodiac", "flag", "book", "mail")  # their mirror images would be wrong


class Training:
    """A training that resumes, with averaged weights and a loss curve.

    Args:
        output: folder of the training.
        name: of the checkpoint.
        minutes: the budget.
        model: to train, on its device.
        rate: the peak learning rate.
        warmup: steps to it.
    """

    def __init__(
        self, output: Path, name: str, minutes: float, model: nn.Module, rate: float, warmup: int = WARMUP_STEPS
    ) -> None:
        self.output, self.name, self.minutes, self.rate, self.warmup = output, name, minutes, rate, warmup
        self.model, self.optimiser = model, Muon(model, rate)
        self.average = {key: value.detach().clone() for key, value in model.named_parameters()}
        self.file, self.steps, self._earlier, self._losses = output / f"{name}.pt", 0, 0.0, []
        if self.file.exists():
            checkpoint = torch.load(self.file, map_location="cpu", weights_only=True)
            model.load_state_dict(checkpoint["model"])
            self.optimiser.load_state_dict(checkpoint["optimiser"])
            for key, value in checkpoint["average"].items():
                self.average[key].copy_(value)
            self.steps, self._earlier = checkpoint["steps"], checkpoint["minutes"]
            print(f"resumed {name} at step {self.steps}, minute {self._earlier:.1f}", flush=True)
        self._start = self._saved = time.monotonic()

    @property
    def spent(self) -> float:
        return self._earlier + (time.monotonic() - self._start) / 60

    def run(self, compute_loss: Callable[[float], torch.Tensor]) -> None:
        """Train for the rest of the budget, on a loss of the spent part."""
        parameters = dict(self.model.named_parameters())
        torch.manual_seed(self.steps)
        while (progress := self.spent / self.minutes) < 1:
            # A trapezoid: constant, then down to nothing over the last two fifths.
            factor = min(1.0, (self.steps + 1) / self.warmup, 0.01 + (1 - progress) / 0.4)
            loss = compute_loss(progress)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters.values(), 1.0)
            self.optimiser.param_groups[0]["lr"] = self.rate * factor
            self.optimiser.step()
            self.optimiser.zero_grad()
            self.steps += 1
            keep = min(0.998, self.steps / (self.steps + 10))
            torch._foreach_lerp_(list(self.average.values()), [p.detach() for p in parameters.values()], 1 - keep)
            self._losses.append(loss.detach())
            if len(self._losses) == ROW_STEPS:  # the only place that waits for the accelerator
                self._write_row()
            if time.monotonic() - self._saved > 60 * CHECKPOINT_MINUTES:
                self.save()
        self.save()
        self.model.load_state_dict(self.average, strict=False)

    def save(self) -> None:
        """Replace the checkpoint as a whole."""
        new = self.file.with_suffix(".new")
        state = {"model": self.model.state_dict(), "average": self.average, "optimiser": self.optimiser.state_dict()}
        torch.save({"steps": self.steps, "minutes": self.spent, **state}, new)
        os.replace(new, self.file)
        self._saved = time.monotonic()

    def _write_row(self) -> None:
        loss = round(torch.stack(self._losses).mean().item(), 5)
        row = {"part": self.name, "step": self.steps, "minutes": round(self.spent, 2), "loss": loss}
        with (self.output / "loss.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
        self._losses.clear()


def make_tensor(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images, channels last, as float32 in [-1, 1], channels first."""
    return (images.permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def train_vae(args: argparse.Namespace, images: torch.Tensor) -> None:
    """Train the autoencoder, at first on crops, which are cheap.

    Three latent channels are pulled towards the mean color of their patch, because a denoiser learns such latents
    several times as fast, and noise on them makes the decoder robust.
    """
    torch.manual_seed(0)
    vae = AutoencoderKL(**VAE).to(args.device, memory_format=torch.channels_last)
    training = Training(args.output, "vae", args.minutes, vae, 2e-3)

    def run_model(batch: torch.Tensor) -> torch.Tensor:
        with autocast(args.device.type):
            mean = vae.encode(batch).latent_dist.mean.float()
            decoded = vae.decode(mean + 0.06 * torch.randn_like(mean)).sample.float()
        anchor = F.mse_loss(mean[:, :3], 1.5 * F.avg_pool2d(batch, PATCH))
        edges = sum(F.l1_loss(decoded.diff(dim=dim), batch.diff(dim=dim)) for dim in (2, 3))
        size = mean[:, 3].square().mean()
        return F.l1_loss(decoded, batch) + F.mse_loss(decoded, batch) + 0.5 * edges + 0.1 * anchor + 0.005 * size

    run_model = args.compile(run_model)

    def compute_loss(progress: float) -> torch.Tensor:
        side, count = (64, 128) if progress < 0.5 else (128, 64)
        y, x = torch.randint(0, images.shape[1] - side + 1, (2,)).tolist()
        chosen = torch.randint(0, len(images), (count,), device=args.device)
        return run_model(make_tensor(images[chosen, y : y + side, x : x + side]))

    training.run(compute_loss)
    with torch.no_grad():
        latents = encode(vae, images)
        centre_latents(vae, latents.mean((0, 2, 3)))
        vae.register_to_config(scaling_factor=round(1 / latents.std((0, 2, 3)).square().mean().sqrt().item(), 4))
    save(vae, args.output / "vae")


def centre_latents(vae: AutoencoderKL, mean: torch.Tensor) -> None:
    """Move the latents' mean to 0; convolutions beside them take up the difference.

    From pure noise, whose mean is 0, a denoiser that predicts noise cannot reach images of another mean.
    """
    channels = len(mean)
    vae.quant_conv.bias.data[:channels] -= mean
    vae.post_quant_conv.bias.data += vae.post_quant_conv.weight.data[:, :, 0, 0] @ mean


def encode(vae: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    """Return the latents of images uint8, float32 ``[count, 4, height, width]``, not scaled."""
    with autocast(images.device.type):
        return torch.cat([vae.encode(make_tensor(some)).latent_dist.mean.float() for some in images.split(32)])


def make_view(images: torch.Tensor, can_turn: torch.Tensor) -> torch.Tensor:
    """Return uint8 images at another size, place and angle, on white.

    Half of those that can turn are mirrored.
    """
    count, device = len(images), images.device
    size = torch.empty(count, device=device).uniform_(1.0, 1.2)
    angle = torch.empty(count, device=device).uniform_(-0.15, 0.15)
    place = torch.empty(count, 2, device=device).uniform_(-1, 1) * (size - 1)[:, None]
    mirror = 1 - 2 * (can_turn & (torch.rand(count, device=device) < 0.5)).float()
    sine, cosine = size * angle.sin(), size * angle.cos()
    rows = torch.stack([mirror * cosine, -mirror * sine, place[:, 0], sine, cosine, place[:, 1]], 1)
    grid = F.affine_grid(rows.reshape(count, 2, 3), (count, 3, *images.shape[1:3]), align_corners=False)
    ink = 255 - images.permute(0, 3, 1, 2).float()  # beyond the border there is none
    turned = 255 - F.grid_sample(ink, grid, mode="bicubic", align_corners=False)
    return turned.round().clamp(0, 255).byte().permute(0, 2, 3, 1)


@torch.no_grad()
def make_latents(args: argparse.Namespace, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return scaled latents of views of each image.

    They are float16 ``[views, images, 4, height, width]``; the first view is the image itself. On a CPU, where
    encoding takes minutes, a file keeps them.
    """
    file = args.output / f"latents-{images.shape[1]}-{args.views}.pt"
    if args.device.type == "cpu" and file.exists():
        return torch.load(file, weights_only=True)
    torch.manual_seed(2)
    vae = AutoencoderKL.from_pretrained(args.output / "vae").eval().to(args.device, memory_format=torch.channels_last)
    turned = torch.tensor([name not in UNTURNED for name in args.classes], device=args.device)[labels]
    views = [encode(vae, images)] + [
        torch.cat([encode(vae, make_view(*some)) for some in zip(images.split(512), turned.split(512), strict=True)])
        for _ in range(1, args.views)
    ]
    latents = (torch.stack(views) * vae.config.scaling_factor).half()
    if args.device.type == "cpu":
        torch.save(latents, file)
    return latents


class Denoiser(nn.Module):
    """A denoiser with its condition: ``forward`` takes labels, of which the last is none.

    Args:
        kind: ``dit`` or ``unet``, which has a text model.
        classes: names of the classes.
        side: of the latents.
        config: of a UNet.
    """

    def __init__(self, kind: str, classes: list[str], side: int, config: dict[str, Any] = UNET) -> None:
        super().__init__()
        self.none = len(classes)
        self.text = Text(classes) if kind == "unet" else None
        if self.text is not None:
            self.register_buffer("tokens", self.text.tokenize([*classes, ""]), persistent=False)
            self.model = UNet2DConditionModel(**config, sample_size=side)
            nn.init.zeros_(self.model.conv_out.weight)
        else:
            # In training mode every block would drop the label at random by itself; here all blocks drop it or none.
            self.model = DiTTransformer2DModel(**DIT, sample_size=side).eval()
            self._init_transformer()

    def _init_transformer(self) -> None:
        """Initialise all blocks to the identity (adaLN-Zero; Peebles & Xie 2023, section 3.2)."""
        for block in self.model.transformer_blocks:
            nn.init.zeros_(block.norm1.linear.weight)
            nn.init.zeros_(block.norm1.linear.bias)
            labels = block.norm1.emb.class_embedder.embedding_table.weight.data
            labels.normal_(std=0.02)
            labels[self.none : -1] = 0  # labels that no class has
        for layer in (self.model.proj_out_1, self.model.proj_out_2):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, noisy: torch.Tensor, timesteps: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the noise ``[batch, 4, side, side]``."""
        if self.text is not None:
            return self.model(noisy, timesteps, self.text(self.tokens[labels]), return_dict=False)[0]
        labels = torch.where(labels == self.none, UNLABELLED, labels)
        return self.model(noisy, timesteps, labels, return_dict=False)[0]


def train_denoiser(args: argparse.Namespace, latents: torch.Tensor, labels: torch.Tensor) -> None:
    """Train a denoiser on noise (Ho et al. 2020) with min-SNR weights.

    Weights are those of Hang et al. 2023, equation 7.
    """
    torch.manual_seed(1)
    scheduler = DDIMScheduler(**SCHEDULES[args.part])
    config = LARGE_UNET if args.start and is_training(args.start) else UNET
    denoiser = Denoiser(args.part, args.classes, latents.shape[-1] // args.pool, config)
    denoiser = denoiser.to(args.device, memory_format=torch.channels_last)
    cheap = CheapFinestLevel([denoiser.model] if args.windows else [], WINDOW, skip_convolutions=False)
    holds = hold_coarser_levels(denoiser, denoiser.model) if args.windows else []
    print(f"{sum(p.numel() for p in denoiser.parameters()) / 1e6:.2f} million parameters", flush=True)
    warmup = RESTARTED_WARMUP_STEPS if args.start else WARMUP_STEPS
    training = Training(args.output, args.part, args.minutes, denoiser, args.rate, warmup)
    # Rare classes are shown more often than their number of images says: by its square root.
    weights = torch.bincount(labels)[labels].float().rsqrt()
    alphas = scheduler.alphas_cumprod.to(args.device)
    snr_weights = (5 * (1 - alphas) / alphas).clamp(max=1)

    @args.compile
    def run_model(noisy: torch.Tensor, timesteps: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        with autocast(args.device.type):
            return denoiser(noisy, timesteps, prompts).float()

    def compute_loss(progress: float) -> torch.Tensor:
        if progress >= args.windows:
            cheap.remove()
            while holds:
                holds.pop().remove()
        chosen = torch.multinomial(weights, args.batch, replacement=True)
        clean = latents[torch.randint(0, len(latents), (args.batch,), device=args.device), chosen].float()
        noise, uniform = torch.randn_like(clean), torch.rand(args.batch, device=args.device)
        timesteps = torch.randint(0, len(alphas), (args.batch,), device=args.device)
        alpha = alphas[timesteps].reshape(-1, 1, 1, 1)
        noisy = alpha.sqrt() * clean + (1 - alpha).sqrt() * noise
        noisy, noise = (F.avg_pool2d(x, args.pool) for x in (noisy, noise))
        prompts = torch.where(uniform < UNPROMPTED, denoiser.none, labels[chosen])
        errors = (run_model(noisy, timesteps, prompts) - noise).square().mean((1, 2, 3))
        return (errors * snr_weights[timesteps]).mean()

    training.run(compute_loss)
    save(denoiser.model, args.output / args.part)
    scheduler.save_pretrained(args.output / f"{args.part}-scheduler")
    if denoiser.text is not None:
        denoiser.text.save(args.output / "text.npz")


def save(model: Any, folder: Path) -> None:
    """Save weights in float16, as the exported model has them."""
    model.save_config(folder)
    weights = {name: value.half().contiguous().cpu() for name, value in model.state_dict().items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})


def start_from_exported(args: argparse.Namespace, side: int) -> None:
    """Write the autoencoder and the first checkpoint of an exported model's UNet and text model."""
    vae = AutoencoderKL(**VAE)
    read_exported(vae, args.start / "vae")
    vae.register_to_config(scaling_factor=json.loads((args.start / "vae/config.json").read_text())["scaling_factor"])
    save(vae, args.output / "vae")
    denoiser = Denoiser("unet", args.classes, side // args.pool)
    read_exported(denoiser.model, args.start / "unet")
    numbers = json.loads((args.start / "tokenizer/vocab.json").read_text())
    tokens = [numbers[word if word in (START, END) else word + "</w>"] for word in denoiser.text.words]
    exported = load_file(args.start / "text_encoder/model.safetensors")
    embeddings = "text_model.embeddings"
    denoiser.text.load_state_dict({
        "token.weight": exported[f"{embeddings}.token_embedding.weight"][tokens],
        "position.weight": exported[f"{embeddings}.position_embedding.weight"],
        **{f"norm.{name}": exported[f"text_model.final_layer_norm.{name}"] for name in ("weight", "bias")},
    })  # fmt: skip
    Training(args.output, "unet", 0, denoiser, args.rate).save()


def is_training(folder: Path) -> bool:
    return (folder / "unet.pt").exists()


def start_from_training(args: argparse.Namespace, side: int) -> None:
    """Write the first checkpoint of a UNet that gets a finest level."""
    small = Denoiser("unet", args.classes, side // 2)
    checkpoint = torch.load(args.start / "unet.pt", map_location="cpu", weights_only=True)
    small.load_state_dict(checkpoint["model"] | checkpoint["average"])
    denoiser = Denoiser("unet", args.classes, side, LARGE_UNET)
    add_finest_level(small.model, denoiser.model)
    denoiser.text.load_state_dict(small.text.state_dict())
    shutil.copytree(args.start / "vae", args.output / "vae")
    Training(args.output, "unet", 0, denoiser, args.rate).save()


def read_exported(model: Any, folder: Path) -> None:
    """Read weights in ppdiffusers' format, whose linear layers are transposed."""
    weights = load_file(folder / "diffusion_paddle_model.safetensors")
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            weights[f"{name}.weight"] = weights[f"{name}.weight"].T
    model.load_state_dict(weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("vae", "dit", "unet"))
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="of training, those of earlier runs included")
    parser.add_argument("--start", type=Path, metavar="FOLDER",
                        help="exported model from which a UNet without a checkpoint starts, or the output of its "
                        "training with --pool 2, to which it adds a finest level")
    parser.add_argument("--views", type=int, default=16, help="of each image that a denoiser sees (16)")
    parser.add_argument("--batch", type=int, default=256, help="of a denoiser")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="the denoiser's peak learning rate")
    parser.add_argument("--pool", type=int, default=1, metavar="SIDE",
                        help="of the squares over which noisy latents are averaged (1)")
    parser.add_argument("--windows", type=float, default=0.0, metavar="PART",
                        help="of the minutes in which the finest level learns alone, within windows of attention (0)")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    args = parser.parse_args()
    args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.compile = (lambda function: function) if args.eager else torch.compile
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    args.output.mkdir(parents=True, exist_ok=True)
    with np.load(args.images) as file:
        is_trained = ~file["is_held_out"]
        images = torch.from_numpy(file["images"][is_trained]).to(args.device)
        labels = torch.from_numpy(file["labels"][is_trained].astype(np.int64)).to(args.device)
        args.classes = file["classes"].tolist()
    if args.start and not is_training(args.output):
        start = start_from_training if is_training(args.start) else start_from_exported
        start(args, images.shape[1] // PATCH)
    if args.part == "vae":
        train_vae(args, images)
    else:
        train_denoiser(args, make_latents(args, images, labels), labels)


if __name__ == "__main__":
    main()
