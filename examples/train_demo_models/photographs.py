"""The ten photographs of scikit-image that the small models generate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Subject:
    """A photograph, and the words that prompts use for it.

    Attributes:
        name: one word for files, tables and class labels.
        words: the same in a prompt, with its article.
        source: the function of ``skimage.data`` that loads the photograph.
        square: left, top and side of the part that the models know, in the photograph's pixels.
    """

    name: str
    words: str
    source: str
    square: tuple[int, int, int]


# Credits and licences are in NOTICE.
SUBJECTS = (
    Subject("astronaut", "an astronaut", "astronaut", (40, 0, 400)),
    Subject("cat", "a cat", "chelsea", (90, 0, 300)),
    Subject("coffee", "a cup of coffee", "coffee", (80, 0, 400)),
    Subject("rocket", "a rocket", "rocket", (156, 95, 325)),
    Subject("motorcycle", "a motorcycle", "stereo_motorcycle", (270, 50, 430)),
    Subject("galaxies", "galaxies", "hubble_deep_field", (590, 400, 280)),
    Subject("retina", "a retina", "retina", (0, 0, 1411)),
    Subject("wall", "a brick wall", "brick", (100, 180, 300)),
    Subject("coins", "coins", "coins", (72, 84, 160)),
    Subject("photographer", "a photographer", "camera", (50, 40, 370)),
)


def prompt_of(subject: Subject) -> str:
    """Return the prompt that the model was taught for a subject.

    >>> prompt_of(SUBJECTS[1])
    'a photo of a cat'
    """
    return f"a photo of {subject.words}"


@cache
def photograph(source: str) -> Image.Image:
    """Load a photograph of ``skimage.data`` in RGB."""
    from PIL import Image
    from skimage import data

    loaded = getattr(data, source)()
    return Image.fromarray(loaded[0] if isinstance(loaded, tuple) else loaded).convert("RGB")


def square_image(subject: Subject, size: int) -> Image.Image:
    """Return the square that the models know, RGB, ``size`` pixels a side."""
    from PIL import Image

    left, top, side = subject.square
    box = (left, top, left + side, top + side)
    return photograph(subject.source).resize((size, size), Image.Resampling.LANCZOS, box=box)
