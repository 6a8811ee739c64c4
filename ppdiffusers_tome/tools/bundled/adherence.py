"""Whether a picture of a bundled model shows what its prompt asks: each model is judged on what it was taught."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppdiffusers_tome.tools.bundled.checker import check
from ppdiffusers_tome.tools.bundled.recognition import shows_subject
from ppdiffusers_tome.tools.bundled.scenes import parse_prompt


def judge_of(*, classes: bool) -> Callable[[np.ndarray, str], bool | None]:
    """The judge of a bundled model, the one that takes classes or the one that takes prompts.

    It is given a picture, uint8 ``[height, width, 3]`` RGB, and its prompt; None is for prompts that nobody can judge.
    """
    return shows_subject if classes else _shows_scene


def _shows_scene(picture: np.ndarray, prompt: str) -> bool | None:
    try:
        scene = parse_prompt(prompt)
    except ValueError:
        return None
    return check(picture, scene).complete
