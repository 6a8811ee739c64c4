"""Models that only tests and benchmarks use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

EMOJI = Path(__file__).parent / "emoji"


def load_emoji(folder: Path = EMOJI, **keywords: Any) -> Any:
    """Load the StableDiffusionPipeline of emoji, with keywords of ``from_pretrained``.

    Its images are 128x128, its latents 32x32. Its prompts are the classes of ``examples/train_demo_models/emoji.py``,
    such as "cat face", and it is best at guidance 3 to 7.
    """
    from ppdiffusers import StableDiffusionPipeline

    return StableDiffusionPipeline.from_pretrained(str(folder), safety_checker=None, **keywords)
