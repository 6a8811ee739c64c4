"""Images by number, each with a size, noise and words of its own."""

from typing import Any

import numpy as np

import tiny

SETTINGS = {
    "usual": tiny.MERGE_ALL,
    "reuse": dict(tiny.MERGE_ALL, reuse_steps=2),
    "tiles and schedule": dict(ratio=(0.6, 0.2), max_downsample=2, tile=4, end=0.8),
    "todo": dict(ratio=0.5, max_downsample=2, method="todo"),
    "keys": dict(ratio=0.5, max_downsample=2, method="keys", reuse_steps=2),
}
STEPS = 3
# Height and width of the latent; most with as many tokens as another of another shape.
SIZES = [(16, 16), (8, 32), (32, 8), (12, 20)]


def draw(pipe: Any, number: int, **given: Any) -> np.ndarray:
    """Draw the latents of an image, the same whoever draws beside."""
    height, width = SIZES[number % len(SIZES)]
    embeds = {**tiny.PROMPT_EMBEDS, "prompt_embeds": tiny.array((1, tiny.TEXT_TOKENS, tiny.CROSS_DIM), seed=number)}
    noise = tiny.array((1, 4, height, width), seed=number)
    asked = dict(latents=noise, num_inference_steps=STEPS, output_type="latent", height=2 * height, width=2 * width)
    return tiny.to_numpy(pipe(**embeds, **{**asked, **given}).images)
