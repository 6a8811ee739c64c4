"""Values and names as text for people."""

import difflib
from collections.abc import Iterable
from typing import Any

_MAX_CHARACTERS = 200  # of a value in an error; a long array would hide the sentence


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest a known word that is close: ``; did you mean --steps?``."""
    plain = {each.lower().lstrip("-"): each for each in known}  # dashes make options alike
    close = difflib.get_close_matches(word.lower().lstrip("-"), plain, n=1, cutoff=0.65)
    return f"; did you mean {plain[close[0]]}?" if close else ""


def shorten_repr(value: Any) -> str:
    """Return the ``repr`` as one line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def describe_type(value: Any) -> str:
    """Name the type of a value, and the shape of an array."""
    name, shape = type(value).__name__, getattr(value, "shape", None)
    return f"{name} of shape {list(shape)}" if shape and isinstance(shape, list | tuple) else name


def format_count(number: int, what: str) -> str:
    """Return ``1 step``, ``2 steps``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def format_setting(value: Any) -> str:
    """Format a setting for people: ``0.5``; ``0.7 to 0.3`` for a ramp."""
    if isinstance(value, list | tuple):
        return " to ".join(map(format_setting, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
