"""Latents of the subjects' views, kept in a file because encoding is slow."""

from __future__ import annotations

import fcntl
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from photographs import SUBJECTS
from precision import autocast
from safetensors.torch import load_file
from sheets import to_tensor
from torch.nn import functional as F
from views import View, make_random_view, render_view


@dataclass(frozen=True)
class Latents:
    """Encoded views.

    Attributes:
        scaled: scaled latents ``[count, 4, 64, 64]``.
        subjects: the subject's number of each.
        views: the view of each.
    """

    scaled: torch.Tensor
    subjects: np.ndarray
    views: list[View]

    def resize(self, size: int) -> torch.Tensor:
        """Shrink the latents to those of images of ``size`` pixels, without encoding again."""
        if size == 8 * self.scaled.shape[-1]:
            return self.scaled
        return F.interpolate(self.scaled, size=size // 8, mode="bilinear", antialias=True)


def make_latents(vae_folder: Path, folder: Path, views: int, width: float, mirror: bool) -> Latents:
    """Encode views of each subject, unless a file has them.

    Args:
        vae_folder: the autoencoder.
        folder: of the file.
        views: number of views of each subject.
        width, mirror: as in ``make_random_view``.
    """
    rng = np.random.default_rng(0)
    chosen = [make_random_view(rng, width, mirror) for _ in range(views * len(SUBJECTS))]
    subjects = np.arange(len(chosen)) % len(SUBJECTS)
    encoder = _hash_encoder(vae_folder)
    squares = hashlib.sha256(repr(SUBJECTS).encode()).hexdigest()[:8]
    file = folder / f"latents-{encoder}-{squares}-{views}-{width:g}{'-mirrored' if mirror else ''}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # so that only one of two simultaneous trainings encodes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            _write_latents(vae_folder, file, subjects, chosen)
    return Latents(torch.load(file, weights_only=True), subjects, chosen)


def _hash_encoder(vae_folder: Path) -> str:
    """Hash the encoder's weights; the decoder, which trains longer, does not matter."""
    weights = load_file(vae_folder / "diffusion_pytorch_model.safetensors")
    digest = hashlib.sha256()
    for name in sorted(name for name in weights if name.startswith(("encoder.", "quant_conv."))):
        digest.update(name.encode() + weights[name].numpy().tobytes())
    return digest.hexdigest()[:8]


def _write_latents(vae_folder: Path, file: Path, subjects: np.ndarray, views: list[View]) -> None:
    vae = AutoencoderKL.from_pretrained(vae_folder).eval().to(memory_format=torch.channels_last)
    latents = [_encode(vae, number, view) for number, view in zip(subjects, views, strict=True)]
    new = file.with_suffix(".new")
    torch.save(torch.cat(latents), new)
    new.rename(file)


@torch.no_grad()
def _encode(vae: AutoencoderKL, number: int, view: View) -> torch.Tensor:
    with autocast():
        mean = vae.encode(to_tensor(render_view(SUBJECTS[number], view)[None])).latent_dist.mean
    return mean.float().contiguous() * vae.config.scaling_factor
