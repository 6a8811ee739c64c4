"""A picture that was drawn, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.measure.units import counted

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from ppdiffusers_tome.tools.measure.similarity import Similarity


@dataclass(frozen=True)
class GeneratedImage:
    """One picture and what it took.

    Attributes:
        kept_image: itself; None once only its figures are kept.
        seconds: of the whole call of the pipeline, decoding included.
        peak_bytes: the most memory in use during the call, weights included; None when it could not be measured.
        denoising_peak_bytes: the same until the last denoising step was done.
        similarity: to the unmerged picture; None for that picture itself, or where none was compared.
        block_seconds: by level, of the blocks that could merge, merging included; empty where they were not timed.
        follows_prompt: whether it shows what the prompt asks; None where nobody can tell.
    """

    kept_image: Image.Image | None
    seconds: float
    peak_bytes: int | None
    denoising_peak_bytes: int | None
    similarity: Similarity | None = None
    block_seconds: Mapping[int, float] = field(default_factory=dict)
    follows_prompt: bool | None = None

    @property
    def image(self) -> Image.Image:
        """The picture, which must have been kept."""
        assert self.kept_image is not None, "only its figures were kept"
        return self.kept_image

    def compare_with(self, unmerged: Image.Image | np.ndarray) -> GeneratedImage:
        """The same with its similarity to the unmerged picture, uint8 ``[height, width, 3]``."""
        import numpy as np

        from ppdiffusers_tome.tools.measure.similarity import compare_images

        return replace(self, similarity=compare_images(np.asarray(unmerged), np.asarray(self.image)))


def format_run(run: Mapping[str, Any]) -> str:
    """What all pictures of a run have in common, in a line; ``run`` is what ``LoadedPipeline.describe_run`` gives."""
    size = f"{run['width']}x{run['height']} pixels"
    return (
        f"{run['model']} model, {size}, {counted(run['steps'], 'step')}, {run['scheduler']}, "
        f"guidance {run['guidance_scale']:g}, {run['dtype']}"
    )
