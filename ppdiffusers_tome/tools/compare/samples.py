"""Measurements of images, and where the images are kept."""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ppdiffusers_tome.tools.images import slugify

RESULTS = ("compare.png", "compare.md", "compare.json")  # made of the images and the ledger


class Case(NamedTuple):
    """A prompt and the seed of its noise, which every configuration generates."""

    prompt: str
    seed: int

    def locate(self, folder: Path, configuration: str) -> Path:
        """Return the path of its image, the same in every run."""
        return folder / "images" / _make_name(configuration) / f"{_make_name(self.prompt)}-seed-{self.seed}.png"


@dataclass(frozen=True)
class Sample:
    """The measurements of one image."""

    prompt: str
    seed: int
    seconds: float  # of the whole call
    unmerged_seconds: float  # of the unmerged image
    denoising_peak_bytes: int | None  # until the last denoising step; None if it could not be measured
    peak_bytes: int | None  # with decoding; None if it could not be measured
    psnr_db: float | None = None  # to the unmerged image; None for that image itself
    ssim: float | None = None  # as psnr_db
    is_disturbed: bool = False  # by other programs, so that the seconds mislead

    @property
    def similarity(self) -> str:
        """The similarity in words, "" for the unmerged image."""
        if self.psnr_db is None:
            return ""
        return "identical" if math.isinf(self.psnr_db) else f"PSNR {self.psnr_db:.1f} dB, SSIM {self.ssim:.3f}"


def _make_name(text: str) -> str:
    """Return a part of a file name; different texts have different ones."""
    return f"{slugify(text)}-{zlib.crc32(text.encode()):08x}"
