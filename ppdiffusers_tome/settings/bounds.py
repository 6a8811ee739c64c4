"""Bounds of single settings, and numbers of other libraries as Python's own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.settings.text import describe_type, did_you_mean, shorten_repr


def to_python(value: Any) -> Any:
    """Turn a value of numpy or Paddle into Python's own type."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def check_type(value: Any, expected: Any, accepted: str, label: str = "", hint: str = "") -> None:
    """Refuse a value of another type; a bool is no number.

    ``accepted`` are the accepted values in words. ``label`` and ``hint`` begin and end the error, as in ``sx=`` and
    ``; did you mean tome?``.
    """
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise ToMeTypeError(f"{label}{shorten_repr(value)} must be {accepted}; got {describe_type(value)}{hint}")


@dataclass(frozen=True)
class Bounds:
    """The values that a setting accepts."""

    kind: type  # ``bool``, ``str``, ``Integral`` or ``Real``
    accepted: str  # the values in words
    lowest: float = -math.inf
    highest: float = math.inf
    or_none: bool = False  # True where None is accepted, too
    among: Sequence[Any] = ()  # the only values, where not all of the kind are accepted

    def check(self, name: str, value: Any) -> Any:
        """Return an accepted value in Python's own type; refuse others."""
        value = to_python(value)
        if value is None and self.or_none:
            return None
        check_type(value, self.kind, self.accepted, f"{name}=")
        is_text = self.kind is str
        if not (is_text or self.lowest <= value <= self.highest) or (self.among and value not in self.among):
            suggestion = did_you_mean(value, self.among) if is_text else ""
            raise ToMeValueError(f"{name}={shorten_repr(value)} must be {self.accepted}{suggestion}")
        # A numpy string is a str, too.
        return (int if self.kind is Integral else float if self.kind is Real else self.kind)(value)


def setting(
    default: Any, kind: type = bool, accepted: str = "True or False", lowest: float = -math.inf,
    highest: float = math.inf, among: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Return a setting's field; None is accepted where it is the default."""
    return field(default=default, metadata={"bounds": Bounds(kind, accepted, lowest, highest, default is None, among)})
