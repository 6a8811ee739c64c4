"""The steps that a cache over steps computes. Imports no Paddle."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate, pairwise

MIN_STEPS = 9  # with fewer, no step is skipped
_GROWTH = 1.2  # 0 spaces the computed steps evenly; more moves them to the end


@lru_cache(maxsize=64)
def choose_computed_steps(num_steps: int, cache: float | tuple[int, ...]) -> frozenset[int]:
    """Choose the steps of a denoising that are computed.

    The first two give the extrapolation its slope. From there to the last step the gaps shrink exponentially: later
    steps correct the errors of early ones, and nothing corrects those of the last. The growth was chosen by measuring,
    see docs/en/results/fidelity.md.

    Args:
        num_steps: of the denoising.
        cache: the fraction of steps to skip, or the computed steps themselves, counted from 0; those after the last one
            are computed too.

    Example:
        >>> sorted(choose_computed_steps(20, 0.5))
        [0, 1, 5, 8, 11, 13, 15, 17, 18, 19]
    """
    if isinstance(cache, tuple):
        return (frozenset(cache) | frozenset(range(cache[-1], num_steps))) & frozenset(range(num_steps))
    count = max(num_steps - round(cache * num_steps), 4)
    if num_steps < MIN_STEPS or count >= num_steps:
        return frozenset(range(num_steps))
    distance, num_gaps = num_steps - 2, count - 2  # from the second step to the last
    places = [
        round(distance * math.log1p(number / num_gaps * math.expm1(_GROWTH)) / _GROWTH)
        for number in range(num_gaps + 1)
    ]
    gaps = [max(1, later - earlier) for earlier, later in pairwise(places)]
    while sum(gaps) > distance:
        gaps[gaps.index(max(gaps))] -= 1
    return frozenset([0, *accumulate(sorted(gaps, reverse=True), initial=1)])
