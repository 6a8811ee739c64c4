"""Errors of this package; each is a built-in error too."""

from __future__ import annotations

from collections.abc import Iterable


class ToMeError(Exception):
    """Any error of ppdiffusers_tome."""


class ToMeValueError(ToMeError, ValueError):
    """A setting or argument outside its accepted range.

    Attributes:
        settings: the names of the settings that conflict; empty where one setting alone is wrong.
    """

    def __init__(self, *args: object, settings: Iterable[str] = ()) -> None:
        super().__init__(*args)
        self.settings = tuple(settings)


class ToMeTypeError(ToMeError, TypeError):
    """A setting or argument of the wrong type."""


class NothingToMergeError(ToMeError, ValueError):
    """A pipeline or model without a block that these settings could merge."""


class UserError(ToMeError):
    """Wrong input to the command line; the message is one line that helps."""
