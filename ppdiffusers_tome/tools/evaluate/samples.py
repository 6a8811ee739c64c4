"""Measurements of images, and the folder that keeps the images."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.files import prepare_folder
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED
from ppdiffusers_tome.tools.images import slugify, write_image
from ppdiffusers_tome.tools.measure.similarity import Similarity

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Case:
    """A prompt and the seed of its noise, which every configuration generates."""

    prompt: str
    seed: int

    @property
    def key(self) -> list[Any]:
        """The key of its samples in the ledger."""
        return [self.prompt, self.seed]

    @property
    def file_name(self) -> str:
        """The same in every run, and different for different prompts."""
        return f"{_make_name(self.prompt)}-seed-{self.seed}.png"


@dataclass(frozen=True)
class Sample:
    """The measurements of one image, as JSON has them.

    Peaks are None if they could not be measured. Similarity is to the unmerged image, and None for that image itself;
    an infinite PSNR is None, too.
    """

    prompt: str
    seed: int
    seconds: float  # of the whole call
    unmerged_seconds: float  # of the last unmerged call before it
    denoising_peak_bytes: int | None  # until the last denoising step
    peak_bytes: int | None  # with decoding
    psnr_db: float | None
    ssim: float | None
    flip: float | None

    @property
    def case(self) -> Case:
        return Case(self.prompt, self.seed)

    @property
    def similarity(self) -> Similarity | None:
        if self.ssim is None or self.flip is None:
            return None
        return Similarity(math.inf if self.psnr_db is None else self.psnr_db, self.ssim, self.flip)


@dataclass(frozen=True)
class ImageFolder:
    """The folder of an evaluation's images."""

    path: Path
    keeps_all: bool  # or the unmerged images alone

    def folder_of(self, configuration: str) -> Path:
        """Return the folder of a configuration; different names have different folders."""
        return self.path / ("references" if configuration == UNMERGED else f"images/{_make_name(configuration)}")

    def write(self, configuration: str, case: Case, image: Image.Image) -> None:
        """Write an image that is kept, over an earlier one."""
        if self.keeps_all or configuration == UNMERGED:
            settings = {"configuration": configuration, "prompt": case.prompt, "seed": case.seed}
            (path,) = prepare_folder(self.folder_of(configuration), [case.file_name], overwrite=True)
            write_image(path, image, settings, overwrite=True)

    def open(self, configuration: str, case: Case) -> Image.Image:
        """Open an image that was written."""
        from PIL import Image

        return Image.open(self.folder_of(configuration) / case.file_name).convert("RGB")


def _make_name(text: str) -> str:
    """Return a part of a file name; different texts have different ones."""
    return f"{slugify(text)}-{zlib.crc32(text.encode()):08x}"
