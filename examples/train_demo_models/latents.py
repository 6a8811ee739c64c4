"""Views of all subjects as latents, made once and kept in a file: encoding takes longer than a step of training."""

from __future__ import annotations

import fcntl
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import autocast
from diffusers import AutoencoderKL
from safetensors.torch import load_file
from sheets import to_pixels
from torch.nn import functional as F
from views import View, random_view, render_view

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS


@dataclass(frozen=True)
class Latents:
    """Scaled latents ``[count, 4, 64, 64]``, and of what they are: the subject's number and the view of each."""

    scaled: torch.Tensor
    subjects: np.ndarray
    views: list[View]

    def at(self, size: int) -> torch.Tensor:
        """The latents of pictures of ``size`` pixels, shrunk from those of 512: no second encoding."""
        if size == 8 * self.scaled.shape[-1]:
            return self.scaled
        return F.interpolate(self.scaled, size=size // 8, mode="bilinear", antialias=True)


def make_latents(vae_folder: Path, folder: Path, views: int, width: float, mirror: bool) -> Latents:
    """Encode ``views`` views of each subject, or take those that are kept from an earlier run with this autoencoder.

    Args:
        vae_folder: the autoencoder.
        folder: where latents are kept.
        views: how many of each subject.
        width, mirror: how much they differ, as ``random_view`` takes them.
    """
    rng = np.random.default_rng(0)
    chosen = [random_view(rng, width, mirror) for _ in range(views * len(SUBJECTS))]
    subjects = np.arange(len(chosen)) % len(SUBJECTS)
    weights = _sum_of_encoder(vae_folder)
    squares = hashlib.sha256(repr(SUBJECTS).encode()).hexdigest()[:8]
    file = folder / f"latents-{weights}-{squares}-{views}-{width:g}{'-mirrored' if mirror else ''}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # two trainings that begin together make them once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            _make(vae_folder, file, subjects, chosen)
    return Latents(torch.load(file, weights_only=True), subjects, chosen)


def _sum_of_encoder(vae_folder: Path) -> str:
    """Latents are the encoder's alone, so they stay right while the decoder goes on learning."""
    held = load_file(vae_folder / "diffusion_pytorch_model.safetensors")
    sums = hashlib.sha256()
    for name in sorted(name for name in held if name.startswith(("encoder.", "quant_conv."))):
        sums.update(name.encode() + held[name].numpy().tobytes())
    return sums.hexdigest()[:8]


def _make(vae_folder: Path, file: Path, subjects: np.ndarray, views: list[View]) -> None:
    vae = AutoencoderKL.from_pretrained(vae_folder).eval().to(memory_format=torch.channels_last)
    made = [_encode(vae, number, view) for number, view in zip(subjects, views, strict=True)]
    new = file.with_suffix(".new")
    torch.save(torch.cat(made), new)
    new.rename(file)


@torch.no_grad()
def _encode(vae: AutoencoderKL, number: int, view: View) -> torch.Tensor:
    with autocast():
        mean = vae.encode(to_pixels(render_view(SUBJECTS[number], view)[None])).latent_dist.mean
    return mean.float().contiguous() * vae.config.scaling_factor
