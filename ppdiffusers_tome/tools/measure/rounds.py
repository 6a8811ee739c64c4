"""Rounds in which all who are compared take turns: what slows the machine down for a while slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turn(everyone: Sequence[T], number: int) -> list[T]:
    """Everyone in the order of a round: another begins each, by the round's number."""
    first = number % len(everyone) if everyone else 0
    return [*everyone[first:], *everyone[:first]]


def take_turns(
    turns: Mapping[str, Callable[[], T]], repeats: int, *, warm_up: bool = True, progress: str | None = None
) -> dict[str, list[T]]:
    """What everyone's turns return, round by round.

    Args:
        turns: one turn of everyone, by name.
        repeats: rounds.
        warm_up: whether one more comes first, which sets things up and does not count.
        progress: the name of a progress bar; None for none.
    """
    from tqdm import tqdm

    results: dict[str, list[T]] = {name: [] for name in turns}
    for number in tqdm(range(-1 if warm_up else 0, repeats), desc=progress, disable=True if progress is None else None):
        for name in in_turn(list(turns), number):
            result = turns[name]()
            if number >= 0:
                results[name].append(result)
    return results
