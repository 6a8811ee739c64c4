"""The Pareto frontier: what is not beaten in one respect without losing in the other. Knows no Paddle."""

from __future__ import annotations

from collections.abc import Sequence


def on_frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points no other point dominates.

    Args:
        points: two values each, of both of which more is better, such as a speed-up and a PSNR in dB (infinite for
            identical pictures).

    Returns:
        True for every point such that no other is at least as good in both values and better in one. Of equal points
        all are on the frontier, or none.
    """
    return [not any(_dominates(other, point) for other in points) for point in points]


def _dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]
