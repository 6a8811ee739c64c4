"""The errors this package raises. Each is a built-in kind too, so callers may catch either."""

from __future__ import annotations


class ToMeError(Exception):
    """Any error of ppdiffusers_tome."""


class ToMeValueError(ToMeError, ValueError):
    """A setting has a value outside what is allowed."""


class ToMeTypeError(ToMeError, TypeError):
    """A setting or argument has the wrong type."""


class NothingToMergeError(ToMeError, ValueError):
    """The pipeline or model holds no block whose tokens can be merged with these settings."""


class UserError(ToMeError):
    """The command line program was given something it cannot work with; the message is one line that helps."""
