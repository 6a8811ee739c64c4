"""Values of settings: of whatever library they are when given, Python's own and unchangeable when held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

LEVELS = (1, 2, 4, 8)
_SHOWN = 200  # characters of a value in an error; an array of many numbers would hide the sentence


class _NotGiven:
    """Stands for an argument that was not given, as None and every number may be meant."""

    def __repr__(self) -> str:
        return "<not given>"


# Of any type, so that the parameters that it is the default of keep their own.
UNSET: Any = _NotGiven()


class ByLevel(Mapping[int, Any]):
    """A number, or a ramp as a tuple, for each level, finest first. Cannot be changed, so it hashes.

    Example:
        >>> ByLevel({2: 0.25, 1: 0.5})
        {1: 0.5, 2: 0.25}
    """

    __slots__ = ("_items",)

    def __init__(self, shares: Mapping[int, Any]) -> None:
        self._items = tuple(sorted(shares.items()))

    def __getitem__(self, level: int) -> Any:
        return dict(self._items)[level]

    def __iter__(self) -> Iterator[int]:
        return (level for level, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return repr(dict(self._items))


def to_python(value: Any) -> Any:
    """A number or flag of numpy's, Paddle's or another library's as Python's own; anything else as it came.

    An array or tensor of one element is that element, whatever its shape; one of several in a row is a list.
    """
    if isinstance(value, type) or not callable(getattr(value, "item", None)):
        return value
    try:
        # One by one: Paddle's `tolist` gives the bits of bfloat16, its `item` the number.
        if math.prod(value.shape) == 1:
            return value.item()
        return [to_python(element) for element in value] if len(value.shape) == 1 else value
    except Exception:  # such as a tensor of a program that is being recorded, which has no values yet
        return value


def truncated_repr(value: Any) -> str:
    """A value as an error shows it: on one line, cut off where it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a whole number of more than 4300 digits, among others
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def describe_type(value: Any) -> str:
    """What a value is, in words: its type, and the shape of an array."""
    shape = getattr(value, "shape", None)
    name = type(value).__name__
    return f"{name} of shape {list(shape)}" if shape and isinstance(shape, list | tuple) else name


def format_setting(value: Any) -> str:
    """A setting's value for people: ``0.5``, ``0.7 to 0.3`` for a ramp, ``0.5 at level 1, 0.25 at level 2``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{format_setting(ratio)} at level {level}" for level, ratio in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(format_setting, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
