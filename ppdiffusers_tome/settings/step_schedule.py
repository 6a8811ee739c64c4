"""The steps that a cache over steps computes. Imports no Paddle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

MIN_STEPS = 9  # with fewer, no step is skipped

# The kinds of denoisers whose early and late steps matter differently.
FAMILIES = UNET, CLASS_TRANSFORMER, TEXT_TRANSFORMER, VIDEO_TRANSFORMER = (
    "UNet", "class-conditional transformer", "text-to-image transformer", "video transformer",
)  # fmt: skip
# How densely steps are computed over the denoising, as points of progress (0 to 1) and density, interpolated linearly.
# UNet: chosen by the worst regime of docs/en/results/step-caches.md. The others: by the errors that others measured on
# DiT-XL/2, FLUX.1-dev and Wan2.1 (arXiv 2512.23258), which that page names, too.
_DENSITIES: dict[str, tuple[tuple[float, float], ...]] = {
    UNET: ((0.0, 1.0), (1.0, 1.0)),
    CLASS_TRANSFORMER: ((0.0, 0.35), (0.5, 0.5), (0.8, 0.8), (1.0, 2.0)),
    TEXT_TRANSFORMER: ((0.0, 1.0), (0.34, 1.0), (0.38, 0.25), (0.85, 0.25), (0.95, 1.0), (1.0, 1.0)),
    VIDEO_TRANSFORMER: ((0.0, 1.0), (0.34, 1.0), (0.38, 0.25), (0.85, 0.25), (0.95, 1.0), (1.0, 1.0)),
}


@lru_cache(maxsize=64)
def choose_computed_steps(
    num_steps: int, cache: float | tuple[int, ...], family: str = UNET, cache_steps: int | None = None
) -> frozenset[int]:
    """Choose the steps of a denoising that are computed.

    The first two are always computed, as they give the extrapolation its slope, and the last one, as nothing corrects
    its error. The steps between are spread by the density of the family.

    Args:
        num_steps: of the denoising.
        cache: the fraction of steps to skip, or the computed steps themselves, counted from 0; those after the last one
            are computed too.
        family: one of ``FAMILIES``, for a fraction.
        cache_steps: the steps of the denoising that a list is for. In one of another length the listed steps keep their
            places, as fractions of the denoising, and the fraction of skipped steps stays.

    Example:
        >>> sorted(choose_computed_steps(20, 0.3))
        [0, 1, 3, 4, 5, 7, 8, 10, 11, 12, 14, 15, 17, 19]
        >>> sorted(choose_computed_steps(10, (0, 1, 2, 6, 14, 18, 19), cache_steps=20))
        [0, 1, 7, 9]
    """
    if isinstance(cache, tuple):
        computed = frozenset(cache) | frozenset(range(cache[-1], cache_steps or num_steps))
        if cache_steps in (None, num_steps):
            return computed & frozenset(range(num_steps))
        return _move_steps(sorted(computed), cache_steps or num_steps, num_steps)
    count = max(num_steps - round(cache * num_steps), 4)
    if num_steps < MIN_STEPS or count >= num_steps:
        return frozenset(range(num_steps))
    points = _DENSITIES[family]
    between = [_interpolate(points, step / (num_steps - 1)) for step in range(2, num_steps - 1)]
    return frozenset([0, 1, num_steps - 1, *(step + 2 for step in _spread(count - 3, between))])


def _spread(count: int, densities: Sequence[float]) -> list[int]:
    """Choose so many places, the closer together the higher the density there."""
    low, high = 0.0, count / min(densities)
    for _ in range(60):  # bisect the factor with which the densities, each at most 1, add up to the count
        middle = (low + high) / 2
        is_less = sum(min(1.0, middle * density) for density in densities) < count
        low, high = (middle, high) if is_less else (low, middle)
    places, owed = [], 0.5
    for place, density in enumerate(densities):
        owed += min(1.0, high * density)
        if owed >= 1 and len(places) < count:
            places.append(place)
            owed -= 1
    return places


def _move_steps(computed: Sequence[int], num_steps: int, new_num_steps: int) -> frozenset[int]:
    """Return as large a part of another denoising's steps, at the same fractions of it."""
    count = max(2, round(len(computed) / num_steps * new_num_steps))
    scale = (new_num_steps - 1) / (num_steps - 1)
    moved: list[int] = []
    for number in range(count):
        place = number * (len(computed) - 1) / (count - 1)
        left, share = int(place), place - int(place)
        step = computed[left] if share == 0 else computed[left] + share * (computed[left + 1] - computed[left])
        moved.append(max(round(step * scale), moved[-1] + 1 if moved else 0))
    for number in range(count - 1, -1, -1):
        moved[number] = min(moved[number], new_num_steps - count + number)
    return frozenset(moved)


def _interpolate(points: Sequence[tuple[float, float]], place: float) -> float:
    """Return the value at a place of the lines between points."""
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if place <= right:
            return low + (high - low) * (place - left) / (right - left)
    return points[-1][1]
