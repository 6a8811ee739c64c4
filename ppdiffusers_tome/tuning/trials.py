"""The same calls with one candidate after another, beside unmerged ones."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ppdiffusers_tome.errors import NothingToMergeError
from ppdiffusers_tome.patching.apply import apply_config, remove_tome
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tuning.results import UNMERGED, Trial


class Run(NamedTuple):
    """All calls: their seconds, and their images, uint8 ``[height, width, 3]``."""

    seconds: float
    images: Sequence[np.ndarray]


def try_candidates(
    pipe: Any, candidates: Sequence[ToMeConfig], run_calls: Callable[[], Run], warm_up: Callable[[], object]
) -> Iterator[Trial]:
    """Yield the trial of the unmerged calls, then of each candidate.

    ``run_calls`` runs the pipeline from the same noise each time, after ``warm_up``, as a first call is slower, if
    compiled much slower.

    Raises:
        NothingToMergeError: nothing merges with any of them. Some with which nothing merges are left out.
    """
    refusals: list[NothingToMergeError] = []
    try:
        remove_tome(pipe)
        warm_up()
        unmerged = run_calls()
        yield Trial(UNMERGED, unmerged.seconds, 1.0, math.inf)
        for config in candidates:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="ToMe")  # advice about settings that nobody chose
                try:
                    apply_config(pipe, config)
                except NothingToMergeError as error:
                    refusals.append(error)
                    continue
                warm_up()
                run = run_calls()
            psnr = min(map(compute_psnr, unmerged.images, run.images))
            yield Trial(config, run.seconds, unmerged.seconds / run.seconds, psnr)
    finally:
        remove_tome(pipe)
    if len(refusals) == len(candidates):
        raise refusals[0]


def compute_psnr(reference: np.ndarray, pixels: np.ndarray) -> float:
    """Compute the PSNR of two uint8 images in dB; infinite if identical."""
    squared_error = np.mean(np.square(reference.astype(np.float64) - pixels))
    return math.inf if squared_error == 0 else 10 * math.log10(255**2 / squared_error)
