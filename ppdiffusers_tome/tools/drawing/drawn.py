"""A picture that was drawn, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.measuring.similarity import Similarity


@dataclass(frozen=True)
class DrawnPicture:
    """One picture and what it took.

    Attributes:
        picture: itself; None once only its figures are kept.
        seconds: of the whole call of the pipeline, decoding included.
        peak_bytes: the most memory in use during the call, weights included; None when it could not be measured.
        denoising_peak_bytes: the same until the last denoising step was done.
        similarity: to the unmerged picture; None for that picture itself, or where none was compared.
        block_seconds: by level, of the blocks that could merge, merging included; empty where they were not timed.
        follows_prompt: whether it shows what the prompt asks; None where nobody can tell.
    """

    picture: Image.Image | None
    seconds: float
    peak_bytes: int | None
    denoising_peak_bytes: int | None
    similarity: Similarity | None = None
    block_seconds: Mapping[int, float] = field(default_factory=dict)
    follows_prompt: bool | None = None
