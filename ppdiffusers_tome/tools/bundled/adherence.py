"""Whether a picture of a bundled model shows what its prompt asks, whichever of the models drew it."""

from __future__ import annotations

import numpy as np

from ppdiffusers_tome.tools.bundled.checker import check
from ppdiffusers_tome.tools.bundled.recognition import shows_subject
from ppdiffusers_tome.tools.bundled.scenes import parse_prompt


def follows_prompt(picture: np.ndarray, prompt: str) -> bool | None:
    """Whether a picture shows what is asked; None where the prompt is in no model's language.

    Args:
        picture: uint8 ``[height, width, 3]``, RGB.
        prompt: of a scene of shapes, or one that names a photograph's subject.
    """
    try:
        scene = parse_prompt(prompt)
    except ValueError:
        return shows_subject(picture, prompt)
    return check(picture, scene).complete
