"""Rounds in which all variants take turns, as slow moments hit all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from tqdm import tqdm

from benchmarks.timing import rotate

T = TypeVar("T")


def take_turns(
    turns: Mapping[str, Callable[[], T]], repeats: int, *, warm_up: bool = True, progress: str | None = None
) -> dict[str, list[T]]:
    """Return the results of all turns by name, round by round.

    Args:
        turns: one turn of each variant, by name.
        repeats: rounds.
        warm_up: whether one more round comes first, which does not count.
        progress: the name of a progress bar; None for none.
    """
    results: dict[str, list[T]] = {name: [] for name in turns}
    for number in tqdm(range(-1 if warm_up else 0, repeats), desc=progress, disable=True if progress is None else None):
        for name in rotate(list(turns), number):
            result = turns[name]()
            if number >= 0:
                results[name].append(result)
    return results
