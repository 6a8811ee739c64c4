"""One configuration on one picture: what drawing it took, and how similar it is to the unmerged one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.api import remove_tome
from ppdiffusers_tome.tools.evaluate.block_clock import timed_blocks
from ppdiffusers_tome.tools.evaluate.configurations import Configuration
from ppdiffusers_tome.tools.generation.results import GeneratedImage


def measure(
    pipe: Any,
    configuration: Configuration,
    draw: Callable[[], GeneratedImage],
    reference: np.ndarray | None = None,
    *,
    blocks_apart: bool | None = None,
) -> GeneratedImage:
    """Measure a configuration on one picture; the pipeline is unmerged afterwards.

    Args:
        pipe: the pipeline that ``draw`` draws with.
        configuration: what is applied to it.
        draw: draws the picture and measures the call.
        reference: the unmerged picture of the same prompt and noise, uint8 ``[height, width, 3]``.
        blocks_apart: time the blocks in a second draw of the same picture. None does so on a GPU alone, where timing
            blocks makes the rest slower.

    Returns:
        what was drawn, with the seconds of its blocks and, where there is a reference, its similarity to that.

    Raises:
        NothingToMergeError: the pipeline has no block that merges with these settings.
    """
    if blocks_apart is None:
        blocks_apart = paddle.get_device() != "cpu"
    try:
        configuration.apply(pipe)
        gc.collect()  # so that what earlier pictures left behind neither counts as memory nor is collected meanwhile
        drawn = draw() if blocks_apart else None
        with timed_blocks(pipe) as block_seconds:
            timed = draw()
    finally:
        remove_tome(pipe)
    drawn = replace(drawn or timed, block_seconds=block_seconds)
    return drawn if reference is None else drawn.compare_with(reference)
