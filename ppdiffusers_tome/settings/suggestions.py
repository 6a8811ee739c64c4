"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word closest to a misspelled one.

    Returns:
        The end of a sentence, ``; did you mean --steps?``, or nothing where no known word is close.
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
