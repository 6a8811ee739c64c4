"""The photographs that the bundled models draw: their subjects in words, and views of them.

All come with scikit-image, so every installation has them already and none is kept here. A view is a crop of the
subject's square of its photograph, perhaps mirrored, a little lighter or warmer: what makes two pictures of one prompt
differ. The same file makes the training pictures (``training``) and the truth that pictures are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

WIDTH = 0.25  # how much the views differ that the bundled models draw: the narrower, the sooner outlines are sharp
MOST_CUT = 0.1  # a view of width 1 leaves out this share of the square's side at most
MOST_LIGHTER, MOST_WARMER = 0.05, 0.03  # and changes brightness, and red against blue, by at most these shares


@dataclass(frozen=True)
class Subject:
    """What a photograph shows.

    Attributes:
        name: one word for files and tables.
        words: as a prompt says it, with its article.
        source: the function of ``skimage.data`` that loads the photograph.
        square: left, top and side of the part that is shown, in the photograph's pixels.
        credit: who took it, and under which licence scikit-image passes it on.
    """

    name: str
    words: str
    source: str
    square: tuple[int, int, int]
    credit: str


SUBJECTS = (
    Subject("astronaut", "an astronaut", "astronaut", (40, 0, 400), "NASA, Eileen Collins; public domain"),
    Subject("cat", "a cat", "chelsea", (90, 0, 300), "Stefan van der Walt; CC0"),
    Subject("coffee", "a cup of coffee", "coffee", (80, 0, 400), "Rachel Michetti, Pikolo Espresso Bar; CC0"),
    Subject("rocket", "a rocket", "rocket", (156, 95, 325), "SpaceX; public domain"),
    Subject(
        "motorcycle",
        "a motorcycle",
        "stereo_motorcycle",
        (270, 50, 430),
        "Middlebury stereo benchmark 2014, Scharstein et al.; free to use and publish",
    ),
    Subject(
        "galaxies", "galaxies", "hubble_deep_field", (590, 400, 280), "NASA, Hubble eXtreme Deep Field; public domain"
    ),
    Subject("retina", "a retina", "retina", (0, 0, 1411), "Mikael Häggström; CC0"),
    Subject("wall", "a brick wall", "brick", (100, 180, 300), "CC0Textures, Bricks25; CC0"),
    Subject("coins", "coins", "coins", (72, 84, 160), "Brooklyn Museum; no known copyright restrictions"),
    Subject("photographer", "a photographer", "camera", (50, 40, 370), "Lav Varshney; CC0"),
)


@dataclass(frozen=True)
class View:
    """How a subject is looked at.

    Attributes:
        side: of the crop, as a share of the square's, above 0 and at most 1.
        x, y: where the crop lies in what it leaves free, 0 (left, top) to 1.
        mirrored: left and right change places.
        lighter: brightness is multiplied by one more than this.
        warmer: red is multiplied by one more than this, blue by one less.
    """

    side: float = 1.0
    x: float = 0.5
    y: float = 0.5
    mirrored: bool = False
    lighter: float = 0.0
    warmer: float = 0.0


def prompt_of(subject: Subject, mirrored: bool = False) -> str:
    """The prompt that the model was taught for a subject.

    >>> prompt_of(SUBJECTS[1])
    'a photo of a cat'
    """
    return f"a {'mirrored ' if mirrored else ''}photo of {subject.words}"


def subject_of(prompt: str) -> Subject | None:
    """The subject that a prompt names, by its noun, and the first of several; None where it names none.

    >>> subject_of("the CAT, please").name
    'cat'
    """
    words = "".join(c if c.isalpha() else " " for c in prompt.lower()).split()
    named = {noun: subject for subject in SUBJECTS for noun in (subject.name, subject.words.split()[-1])}
    return next((named[word] for word in words if word in named), None)


def random_view(rng: np.random.Generator, width: float = 1.0, mirror: bool = False) -> View:
    """Draw a view.

    Args:
        rng: where the chance comes from.
        width: how much views differ: 0 is always the whole square in its own colours, 1 as far as ``MOST_CUT``,
            ``MOST_LIGHTER`` and ``MOST_WARMER`` say, 3 three times as far.
        mirror: mirror every second view.
    """
    cut, x, y, lighter, warmer, mirrored = rng.random(6)
    return View(
        side=float(1 - MOST_CUT * width * cut),
        x=float(x),
        y=float(y),
        mirrored=bool(mirror and mirrored < 0.5),
        lighter=float(MOST_LIGHTER * width * (2 * lighter - 1)),
        warmer=float(MOST_WARMER * width * (2 * warmer - 1)),
    )


def held_out_views(count: int, width: float = 1.0, mirror: bool = False) -> list[View]:
    """``count`` views from a generator of their own. Views lie in a continuous range, so training drew none of them."""
    import numpy as np

    rng = np.random.default_rng(2**31 + 7)
    return [random_view(rng, width, mirror) for _ in range(count)]


def draw(subject: Subject, view: View, size: int = 512, part: Sequence[float] = (0.0, 0.0, 1.0)) -> np.ndarray:
    """Draw a view of a subject, or a square part of the view.

    Args:
        subject, view: of what, and how.
        size: side of the picture in pixels.
        part: left, top and side of the part, as shares of the view's side.

    Returns:
        float32 ``[size, size, 3]``, RGB in [0, 1].
    """
    import numpy as np
    from PIL import Image

    whole = subject.square[2]
    side = whole * view.side
    left = subject.square[0] + (whole - side) * view.x
    top = subject.square[1] + (whole - side) * view.y
    x, y, share = part
    x = 1 - x - share if view.mirrored else x
    box = (left + x * side, top + y * side, left + (x + share) * side, top + (y + share) * side)
    drawn = photograph(subject.source).resize((size, size), Image.Resampling.LANCZOS, box=box)
    picture = np.asarray(drawn, np.float32) / 255
    picture = picture[:, ::-1] if view.mirrored else picture
    gains = (1 + view.lighter) * np.array([1 + view.warmer, 1, 1 - view.warmer], np.float32)
    return np.ascontiguousarray(np.clip(picture * gains, 0, 1), np.float32)


@cache
def photograph(source: str) -> Image.Image:
    """A photograph of ``skimage.data`` in RGB; of a stereo pair the left one."""
    from PIL import Image
    from skimage import data

    loaded = getattr(data, source)()
    pixels = loaded[0] if isinstance(loaded, tuple) else loaded
    return Image.fromarray(pixels).convert("RGB")
