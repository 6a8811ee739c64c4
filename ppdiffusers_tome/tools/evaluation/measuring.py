"""One configuration on one picture: put it on, draw, and say what that took and how like the unmerged picture it is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

from ppdiffusers_tome.tools.bench.contenders import take_off
from ppdiffusers_tome.tools.evaluation.block_clock import timed_blocks
from ppdiffusers_tome.tools.evaluation.configurations import Configuration
from ppdiffusers_tome.tools.measuring.measure import Measured
from ppdiffusers_tome.tools.measuring.similarity import Similarity, compare_pictures

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Measurement:
    """A picture and what it took.

    Attributes:
        picture: what was drawn.
        seconds: of the whole call of the pipeline, decoding included.
        block_seconds: by level, of the blocks that could merge; merging itself included.
        peak_bytes: the most memory in use during the call; None when it could not be measured.
        denoising_peak_bytes: the same until the last denoising step was done.
        quality: likeness to the unmerged picture; None where none was given.
    """

    picture: Image.Image
    seconds: float
    block_seconds: dict[int, float]
    peak_bytes: int | None
    denoising_peak_bytes: int | None
    quality: Similarity | None


def measure(
    pipe: Any,
    configuration: Configuration,
    draw: Callable[[], Measured[Image.Image]],
    reference: np.ndarray | None = None,
    *,
    blocks_apart: bool | None = None,
) -> Measurement:
    """Measure a configuration on one picture; the pipeline is unmerged afterwards.

    Args:
        pipe: the pipeline that ``draw`` draws with.
        configuration: what is put on it.
        draw: draws the picture and measures the call, marking where denoising ends.
        reference: the unmerged picture of the same prompt and noise, uint8 ``[height, width, 3]``.
        blocks_apart: time the blocks in a second draw of the same picture. None does so on a GPU alone, where timing
            blocks makes the rest slower.

    Raises:
        NothingToMergeError: the pipeline has no block that merges with these settings.
    """
    if blocks_apart is None:
        blocks_apart = paddle.get_device() != "cpu"
    try:
        configuration.put_on(pipe)
        gc.collect()  # so that what earlier pictures left behind neither counts as memory nor is collected meanwhile
        drawn = draw() if blocks_apart else None
        with timed_blocks(pipe) as block_seconds:
            timed = draw()
    finally:
        take_off(pipe)
    drawn = drawn or timed
    return Measurement(
        picture=drawn.result,
        seconds=drawn.seconds,
        block_seconds=block_seconds,
        peak_bytes=drawn.peak_bytes,
        denoising_peak_bytes=drawn.peak_bytes_at_mark,
        quality=None if reference is None else compare_pictures(reference, np.asarray(drawn.result)),
    )
