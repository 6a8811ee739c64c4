"""Train a text-to-image model on emoji from scratch: an autoencoder, then a denoiser in two stages.

    python examples/train_demo_models/train_emoji.py --images runs/emoji.npz --output runs/emoji --minutes 110

It resumes from its checkpoints and needs PyTorch, diffusers' two model classes, numpy and the file of ``emoji.py``. The
budget is wall-clock time in minutes, on an accelerator where there is one. More minutes than before continue the
last stage of a finished training; ``vae`` and ``fine.pt`` are all that it needs.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import SCHEDULE, Muon, copy_frozen, save_model, update_average, update_weights
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from finest_level import init_identity, init_pooling
from tokenizer_files import END, START
from torch import nn
from torch.nn import functional as F

from ppdiffusers_tome.cpu.process import keep_freed_memory

CHECKPOINT_MINUTES = 3.0
ROW_STEPS = 50  # a row of the loss curve is the mean of this many steps
WARMUP_STEPS = 50
PATCH = 4  # side of a latent's patch in pixels
VAE = dict(
    block_out_channels=(32, 48, 64), down_block_types=("DownEncoderBlock2D",) * 3,
    up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, norm_num_groups=8, latent_channels=4, sample_size=128,
)  # fmt: skip
# Layers of the finest level are narrow: there a training spends most of its time. Its attention sees 1,024 tokens.
UNET = dict(
    sample_size=32, in_channels=4, out_channels=4, block_out_channels=(48, 96, 144), layers_per_block=1,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    attention_head_dim=(1, 2, 3),  # despite its name the number of heads
    cross_attention_dim=64, norm_num_groups=16,
)  # fmt: skip
LENGTH = 6  # tokens of a prompt with its start, its end and the padding
UNPROMPTED = 0.1  # fraction of the examples
FOCUS = 0.3  # fraction of the timesteps from 150 to 650, where outlines are decided


class Stage:
    """One stage of the training: its models, its checkpoint, its share of the budget and its loss curve.

    Args:
        output: folder of the training.
        name: of the stage.
        minutes: its budget.
        model: to train, on its device, in the memory format channels last.
        rate: the peak learning rate.
    """

    def __init__(self, output: Path, name: str, minutes: float, model: nn.Module, rate: float) -> None:
        self.output, self.name, self.minutes, self.rate = output, name, minutes, rate
        self.model, self.average, self.optimiser = model, copy_frozen(model), Muon(model, rate)
        self.file, self.steps, self._earlier, self._window = output / f"{name}.pt", 0, 0.0, []
        if self.file.exists():
            checkpoint = torch.load(self.file, map_location="cpu", weights_only=True)
            for part in ("model", "average"):
                getattr(self, part).load_state_dict(checkpoint[part])
            self.steps, self._earlier = checkpoint["steps"], checkpoint["minutes"]
            print(f"resumed {name} at step {self.steps}, minute {self._earlier:.1f}", flush=True)
        self._start = self._saved = time.monotonic()

    @property
    def spent(self) -> float:
        return self._earlier + (time.monotonic() - self._start) / 60

    def run(self, compute_losses: Callable[[nn.Module, np.random.Generator, float], dict[str, torch.Tensor]]) -> None:
        """Train for the rest of the budget, on the sum of the losses that the function returns."""
        while (progress := self.spent / self.minutes) < 1:
            rng = np.random.default_rng([self.steps, len(self.name)])
            torch.manual_seed(int(rng.integers(2**31)))
            losses = compute_losses(self.model, rng, progress)
            # A trapezoid: constant, then down to nothing over the last two fifths.
            factor = min(1.0, (self.steps + 1) / WARMUP_STEPS, 0.02 + (1 - progress) / 0.4)
            update_weights(sum(losses.values()), self.optimiser, self.rate * factor)
            update_average(self.average, self.model, self.steps)
            self.steps += 1
            self._window.append({name: float(loss.detach()) for name, loss in losses.items()})
            if len(self._window) == ROW_STEPS:
                self._write_row()
            if time.monotonic() - self._saved > 60 * CHECKPOINT_MINUTES:
                self.save()
        self.save()

    def save(self) -> None:
        """Replace the checkpoint as a whole. It lacks the optimiser's state, which a few steps bring back."""
        new = self.file.with_suffix(".new")
        states = {part: getattr(self, part).state_dict() for part in ("model", "average")}
        torch.save({"steps": self.steps, "minutes": self.spent, **states}, new)
        os.replace(new, self.file)
        self._saved = time.monotonic()

    def _write_row(self) -> None:
        means = {name: round(float(np.mean([row[name] for row in self._window])), 5) for name in self._window[0]}
        row = {"stage": self.name, "step": self.steps, "minutes": round(self.spent, 2), **means}
        with (self.output / "loss.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
        self._window.clear()


def to_tensor(images: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return pictures uint8 ``[count, height, width, 3]`` as float32 ``[count, 3, height, width]`` in [-1, 1]."""
    images = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)
    return (images.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def compute_vae_losses(vae: AutoencoderKL, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the weighted parts of the autoencoder's loss.

    As in ``train_vae``, three latent channels are pulled towards the mean color of their patch, because a denoiser
    learns such latents several times as fast, and noise on them makes the decoder robust.
    """
    with torch.autocast(images.device.type, torch.bfloat16):
        mean = vae.encode(images).latent_dist.mean.float()
        decoded = vae.decode(mean + 0.06 * torch.randn_like(mean)).sample.float()
    return {
        "pixel": F.l1_loss(decoded, images),
        "square": F.mse_loss(decoded, images),
        "edge": 0.5 * sum(F.l1_loss(decoded.diff(dim=dim), images.diff(dim=dim)) for dim in (2, 3)),
        "anchor": 0.1 * F.mse_loss(mean[:, :3], 1.5 * F.avg_pool2d(images, PATCH)),
        "size": 0.005 * mean[:, 3].square().mean(),
    }


def train_vae(args: argparse.Namespace, images: np.ndarray, minutes: float) -> None:
    """Train the autoencoder, at first on crops, which are cheap."""
    torch.manual_seed(0)
    model = AutoencoderKL(**VAE).to(args.device, memory_format=torch.channels_last)
    stage = Stage(args.output, "vae", minutes, model, 2e-3)

    def compute_losses(vae: nn.Module, rng: np.random.Generator, progress: float) -> dict[str, torch.Tensor]:
        side, count = (64, 16) if progress < 0.6 else (128, 4)
        y, x = rng.integers(0, 128 - side + 1, 2)
        batch = images[rng.integers(0, len(images), count), y : y + side, x : x + side]
        return compute_vae_losses(vae, to_tensor(batch, args.device))

    stage.run(compute_losses)
    save_model(stage.average, args.output / "vae")


class Text(nn.Module):
    """A CLIP text model without layers: embeddings of words and positions, normalised.

    Attributes:
        words: of the prompts, each one token, after the start and the end.
    """

    def __init__(self, classes: list[str]) -> None:
        super().__init__()
        self.words = [START, END, *sorted({word for name in classes for word in name.split()})]
        self.token = nn.Embedding(len(self.words), UNET["cross_attention_dim"])
        self.position = nn.Embedding(LENGTH, UNET["cross_attention_dim"])
        self.norm = nn.LayerNorm(UNET["cross_attention_dim"])

    def tokenize(self, prompts: list[str]) -> torch.Tensor:
        """Return token numbers ``[prompts, LENGTH]``."""
        rows = [[START, *prompt.split(), *[END] * LENGTH][:LENGTH] for prompt in prompts]
        return torch.tensor([[self.words.index(word) for word in row] for row in rows])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return hidden states ``[prompts, LENGTH, channels]``."""
        return self.norm(self.token(tokens) + self.position.weight)


class Denoiser(nn.Module):
    """A UNet with its text model, and a head for its coarse levels alone."""

    def __init__(self, classes: list[str]) -> None:
        super().__init__()
        self.text, self.unet = Text(classes), UNet2DConditionModel(**UNET)
        # In bfloat16 on a CPU, explicit products are faster than PyTorch's attention where tokens are few.
        self.unet.set_attn_processor(AttnProcessor())
        channels = UNET["block_out_channels"][1]
        self.head = nn.Sequential(nn.GroupNorm(16, channels), nn.SiLU(), nn.Conv2d(channels, 4, 3, padding=1))
        for layer in self.modules():
            if isinstance(layer, nn.GroupNorm):  # faster on a CPU than in bfloat16
                layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))

    def begin_finest_level(self) -> None:
        """Give the trained coarse levels pooled inputs, as they had before, and enlarge their output."""
        finest, coarser = self.unet.down_blocks[0], self.unet.up_blocks[-2]
        init_pooling(finest.downsamplers[0].conv)
        init_identity(coarser.upsamplers[0].conv)
        for resnet in finest.resnets:  # they begin as shortcuts
            nn.init.zeros_(resnet.conv2.weight)
            nn.init.zeros_(resnet.conv2.bias)

    def forward(self, noisy: torch.Tensor, timesteps: torch.Tensor, tokens: torch.Tensor, coarse: bool) -> torch.Tensor:
        """Return the velocity ``[batch, 4, 32, 32]``, or of ``coarse`` latents ``[batch, 4, 16, 16]``."""
        hidden = self.text(tokens)
        if coarse:
            return self._predict_coarse(noisy, timesteps, hidden)
        return self.unet(noisy, timesteps, hidden, return_dict=False)[0]

    def _predict_coarse(self, noisy: torch.Tensor, timesteps: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        unet = self.unet
        embedding = unet.time_embedding(unet.time_proj(timesteps).to(noisy.dtype))
        state = unet.conv_in(noisy)
        skips = [state]
        for block in unet.down_blocks[1:]:
            state, new = block(state, embedding, **_choose_keywords(block, hidden))
            skips += new
        state = unet.mid_block(state, embedding, encoder_hidden_states=hidden)
        for block in unet.up_blocks[:-1]:
            count = len(block.resnets)
            new, skips = tuple(skips[-count:]), skips[:-count]
            upsamplers = block.upsamplers
            if block is unet.up_blocks[-2]:
                block.upsamplers = None
            state = block(state, new, embedding, **_choose_keywords(block, hidden))
            block.upsamplers = upsamplers
        return self.head(state)


def _choose_keywords(block: nn.Module, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"encoder_hidden_states": hidden} if getattr(block, "has_cross_attention", False) else {}


@torch.no_grad()
def encode(vae: AutoencoderKL, images: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return the latents of pictures, ``[count, 4, 32, 32]``, not scaled."""
    latents = []
    for start in range(0, len(images), 16):
        with torch.autocast(device.type, torch.bfloat16):
            latents.append(vae.encode(to_tensor(images[start : start + 16], device)).latent_dist.mean.float())
    return torch.cat(latents)


def load_latents(args: argparse.Namespace, images: np.ndarray) -> torch.Tensor:
    """Return the scaled latents, computed once; the autoencoder gets its scaling factor."""
    file = args.output / "latents.pt"
    vae = AutoencoderKL.from_pretrained(args.output / "vae").eval().to(args.device, memory_format=torch.channels_last)
    if not file.exists():
        latents = encode(vae, images, args.device)
        vae.register_to_config(scaling_factor=round(1 / latents.std().item(), 4))
        save_model(vae, args.output / "vae")
        torch.save((latents * vae.config.scaling_factor).cpu(), file)
    return torch.load(file, map_location=args.device, weights_only=True)


def train_denoiser(
    args: argparse.Namespace, latents: torch.Tensor, labels: np.ndarray, classes: list[str], coarse_minutes: float,
    fine_minutes: float,
) -> None:
    """Train the coarse levels on pooled latents, then the whole UNet on all of them."""
    torch.manual_seed(1)
    scheduler = DDIMScheduler(**SCHEDULE)
    model = Denoiser(classes).to(args.device, memory_format=torch.channels_last)
    prompts = model.text.tokenize([*classes, ""]).to(args.device)
    # Rare classes are shown more often than their number of pictures says: by its square root.
    weights = np.bincount(labels)[labels] ** -0.5

    def make_losses(coarse: bool, batch: int) -> Callable[..., dict[str, torch.Tensor]]:
        def compute_losses(model: nn.Module, rng: np.random.Generator, progress: float) -> dict[str, torch.Tensor]:
            chosen = rng.choice(len(labels), batch, p=weights / weights.sum())
            clean = latents[torch.from_numpy(chosen).to(args.device)]
            noise = torch.randn_like(clean)
            focused = torch.rand(batch) < FOCUS
            timesteps = torch.where(focused, torch.randint(150, 650, (batch,)), torch.randint(0, 1000, (batch,)))
            timesteps = timesteps.to(args.device)
            noisy, velocity = (f(clean, noise, timesteps) for f in (scheduler.add_noise, scheduler.get_velocity))
            if coarse:  # the noise is then as weak as at the coarser levels of the whole UNet
                noisy, velocity = (F.avg_pool2d(x, 2) for x in (noisy, velocity))
            names = np.where(rng.random(batch) < UNPROMPTED, len(classes), labels[chosen])
            noisy = noisy.contiguous(memory_format=torch.channels_last)
            with torch.autocast(args.device.type, torch.bfloat16):
                predicted = model(noisy, timesteps, prompts[torch.from_numpy(names).to(args.device)], coarse)
            return {"velocity": F.mse_loss(predicted.float(), velocity)}

        return compute_losses

    if not (args.output / "fine.pt").exists():
        stage = Stage(args.output, "coarse", coarse_minutes, model, 2e-3)
        stage.run(make_losses(True, 24))
        model.load_state_dict(stage.average.state_dict())
        model.begin_finest_level()
    stage = Stage(args.output, "fine", fine_minutes, model, 1.5e-3)
    stage.run(make_losses(False, 16))
    save_model(stage.average.unet, args.output / "unet")
    text = {name: weight.cpu().numpy() for name, weight in stage.average.text.state_dict().items()}
    np.savez(args.output / "text.npz", words=np.array(stage.average.text.words), **text)
    scheduler.save_pretrained(args.output / "scheduler")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--shares", type=float, nargs=3, default=(0.2, 0.3, 0.5), help="of the three stages")
    args = parser.parse_args()
    keep_freed_memory()
    args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.output.mkdir(parents=True, exist_ok=True)
    with np.load(args.images) as file:
        is_trained = ~file["is_held_out"]
        images, labels = file["images"][is_trained], file["labels"][is_trained].astype(np.int64)
        classes = file["classes"].tolist()
    vae, coarse, fine = (share * args.minutes for share in args.shares)
    if not (args.output / "vae").exists():
        train_vae(args, images, vae)
    latents = load_latents(args, images)
    train_denoiser(args, latents, labels, classes, coarse, fine)


if __name__ == "__main__":
    main()
