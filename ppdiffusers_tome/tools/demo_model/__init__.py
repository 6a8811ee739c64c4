"""The bundled models, of photographs and of emoji."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODEL, CONTROLNET, DIT, EMOJI = (Path(__file__).parent / name for name in ("model", "controlnet", "dit", "emoji"))
# The commands' defaults.
PROMPTS = ("a photo of an astronaut", "a photo of a cat", "a photo of a cup of coffee")
EMOJI_PROMPTS = ("face", "bird", "car")
EMOJI_CLASSES = (
    "face", "cat face", "heart", "hand", "person", "gesture", "worker", "fantasy", "athlete", "mammal", "bird", "fish",
    "bug", "flower", "plant", "fruit", "vegetable", "dessert", "drink", "building", "car", "ship", "clock", "clothes",
    "music", "book", "mail", "zodiac", "arrow", "button", "digit", "shape", "flag",
)  # fmt: skip


def load_dit(**keywords: Any) -> Any:
    """Load the bundled DiTPipeline, with keywords of ``from_pretrained``."""
    from ppdiffusers import AutoencoderKL, DiTPipeline

    # It is stored once.
    vae = AutoencoderKL.from_pretrained(str(MODEL / "vae"), **keywords)
    return DiTPipeline.from_pretrained(str(DIT), vae=vae, **keywords)
