"""Types of settings: conversion to plain Python values, and text for people."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError

LEVELS = (1, 2, 4, 8)
_MAX_CHARACTERS = 200  # of a value in an error; a long array would hide the sentence


class _Unset:
    """The default of arguments for which None is a valid value."""

    def __repr__(self) -> str:
        return "..."


# Any, so that parameters with this default keep their own types.
UNSET: Any = _Unset()


class ByLevel(Mapping[int, Any]):
    """Immutable, hashable ratios by level, finest first; a ramp is a tuple.

    Example:
        >>> ByLevel({2: 0.25, 1: 0.5})
        {1: 0.5, 2: 0.25}
    """

    def __init__(self, ratios: Mapping[int, Any]) -> None:
        self._ratios = dict(sorted(ratios.items()))

    def __getitem__(self, level: int) -> Any:
        return self._ratios[level]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ratios)

    def __len__(self) -> int:
        return len(self._ratios)

    def __hash__(self) -> int:
        return hash(tuple(self._ratios.items()))

    def __repr__(self) -> str:
        return repr(self._ratios)


def to_python(value: Any) -> Any:
    """Convert a number or flag of numpy, Paddle or another library.

    Returns:
        Python's own value for an array or tensor of one element, whatever its shape; a list for one of several elements
        and one axis; anything else unchanged.
    """
    if isinstance(value, type) or not callable(getattr(value, "item", None)):
        return value
    try:
        # Element by element, as Paddle's `tolist` returns the bits of bfloat16; `item` returns the number.
        if math.prod(value.shape) == 1:
            return value.item()
        return [to_python(element) for element in value] if len(value.shape) == 1 else value
    except Exception:  # for example a tensor of a program that is being traced, which has no value yet
        return value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that is close to a misspelled one.

    Returns:
        The end of a sentence, ``; did you mean --steps?``, or nothing where no known word is close.
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def shorten_repr(value: Any) -> str:
    """Return the ``repr`` as one line that is not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # for example an integer of more than 4300 digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def describe_type(value: Any) -> str:
    """Name the type of a value, and the shape of an array."""
    shape = getattr(value, "shape", None)
    name = type(value).__name__
    return f"{name} of shape {list(shape)}" if shape and isinstance(shape, list | tuple) else name


def check_type(value: Any, expected: Any, accepted: str, label: str = "") -> None:
    """Check the type of a value.

    Args:
        value: a bool is not taken for a number.
        expected: the type, or a union of types.
        accepted: the accepted values in words.
        label: precedes the value in the error, as in ``sx=``.

    Raises:
        ToMeTypeError: the value has another type.
    """
    if isinstance(value, bool) or not isinstance(value, expected):
        raise ToMeTypeError(f"{label}{shorten_repr(value)} must be {accepted}; got {describe_type(value)}")


@dataclass(frozen=True)
class Bounds:
    """The values that a setting accepts.

    Attributes:
        kind: ``bool``, ``str``, ``Integral`` or ``Real``.
        accepted: the values in words.
        lowest, highest: of a number.
        or_none: True where None is accepted, too.
        among: the only values, where not all of the kind are accepted.
    """

    kind: type
    accepted: str
    lowest: float = -math.inf
    highest: float = math.inf
    or_none: bool = False
    among: Sequence[Any] = ()

    def check(self, name: str, value: Any) -> Any:
        """Return a value, which may be numpy's or Paddle's, as Python's own.

        Raises:
            ToMeTypeError, ToMeValueError: the setting does not accept it.
        """
        value = to_python(value)
        if value is None and self.or_none:
            return None
        if self.kind is bool:
            if not isinstance(value, bool):
                raise ToMeTypeError(f"{name}={shorten_repr(value)} must be {self.accepted}")
            return value
        check_type(value, self.kind, self.accepted, f"{name}=")
        is_text = self.kind is str
        is_within = is_text or self.lowest <= value <= self.highest
        if not is_within or (self.among and value not in self.among):
            suggestion = did_you_mean(value, self.among) if is_text else ""
            raise ToMeValueError(f"{name}={shorten_repr(value)} must be {self.accepted}{suggestion}")
        # A numpy string is a str, too.
        return str(value) if is_text else int(value) if self.kind is Integral else float(value)


def setting(
    default: Any, kind: type = bool, accepted: str = "True or False", lowest: float = -math.inf,
    highest: float = math.inf, among: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Return a setting's field; None is accepted where it is the default."""
    bounds = Bounds(kind, accepted, lowest, highest, or_none=default is None, among=among)
    return field(default=default, metadata={"bounds": bounds})


def format_count(number: int, what: str) -> str:
    """Return ``1 step``, ``2 steps``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return ``sx=2, sy=2 and ratio=0.5``."""
    *first, last = (f"{name}={shorten_repr(value)}" for name, value in settings.items())
    return f"{', '.join(first)} and {last}" if first else last


def format_setting(value: Any) -> str:
    """Format a setting for people.

    Returns:
        ``0.5``; ``0.7 to 0.3`` for a ramp; ``0.5 at level 1, 0.25 at level 2`` for ratios by level; ``steps 0, 1, 4``.
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{format_setting(ratio)} at level {level}" for level, ratio in value.items())
    if isinstance(value, list | tuple):
        is_steps = all(isinstance(item, int) for item in value)
        return f"steps {', '.join(map(str, value))}" if is_steps else " to ".join(map(format_setting, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
