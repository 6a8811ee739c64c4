"""The same calls with every setting in turns, unmerged ones among them."""

import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ppdiffusers_tome.errors import NothingToMergeError
from ppdiffusers_tome.patching.apply import apply_config, remove_tome
from ppdiffusers_tome.settings.config import UNMERGED, ToMeConfig
from ppdiffusers_tome.tuning.results import Trial
from ppdiffusers_tome.tuning.similarity import compute_psnr

ROUNDS = 3  # so that one in which the machine was busy does not count


class Run(NamedTuple):
    """All calls: their seconds, and their images, uint8 ``[height, width, 3]``."""

    seconds: float
    images: Sequence[np.ndarray]
    is_disturbed: bool = False  # by other programs


def try_candidates(
    pipe: Any, candidates: Sequence[ToMeConfig], run_calls: Callable[[], Run], warm_up: Callable[[ToMeConfig], object]
) -> Iterator[Trial]:
    """Yield trials of the unmerged calls and the candidates, in ``ROUNDS`` rounds.

    A trial has the medians of the rounds so far. ``run_calls`` starts from the same noise each time, so the first
    images count. In the first round ``warm_up`` runs before, as first calls are slower, if compiled much slower.

    Raises:
        NothingToMergeError: nothing merges with any of them. Some with which nothing merges are left out.
    """
    runs: dict[ToMeConfig, list[Run]] = {config: [] for config in (UNMERGED, *candidates)}
    refusals: list[NothingToMergeError] = []
    try:
        for _ in range(ROUNDS):
            for config in [*runs]:
                with warnings.catch_warnings():
                    # Nobody chose these settings, so advice is ignored, but not that Paddle computes for a program.
                    warnings.filterwarnings("ignore", message="ToMe: (?!.* is computed by Paddle)")
                    try:
                        if config == UNMERGED:
                            remove_tome(pipe)
                        else:
                            apply_config(pipe, config)
                    except NothingToMergeError as error:
                        refusals.append(error)
                        del runs[config]
                        continue
                    if not runs[config]:
                        warm_up(config)
                    run = run_calls()
                    if runs[config] and run.seconds > 2 * runs[config][0].seconds:
                        run = run_calls()  # Of many compiled programs, the oldest were dropped and made again.
                runs[config].append(run._replace(images=()) if runs[config] else run)
                yield _summarize(config, runs[UNMERGED], runs[config])
            if refusals and not runs.keys() - {UNMERGED}:
                raise refusals[0]
    finally:
        remove_tome(pipe)


def _summarize(config: ToMeConfig, unmerged: Sequence[Run], runs: Sequence[Run]) -> Trial:
    unmerged_seconds, seconds = (statistics.median(run.seconds for run in each) for each in (unmerged, runs))
    psnr = min(map(compute_psnr, unmerged[0].images, runs[0].images))
    num_disturbed = sum(first.is_disturbed or run.is_disturbed for first, run in zip(unmerged, runs, strict=True))
    return Trial(config, seconds, unmerged_seconds / seconds, psnr, is_disturbed=2 * num_disturbed > len(runs))
