"""The Pareto frontier of two measures. This module imports no Paddle."""

from __future__ import annotations

from collections.abc import Sequence


def find_frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return True for each point that no other point dominates.

    Args:
        points: two values each, of both of which more is better, such as a speed-up and a PSNR. A point dominates
            another if it is at least as good in both and better in one.
    """
    return [
        not any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points)
        for point in points
    ]
