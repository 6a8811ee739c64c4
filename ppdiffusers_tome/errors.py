"""Errors of this package; each is a built-in error too."""


class ToMeError(Exception):
    """Any error of ppdiffusers_tome."""


class ToMeValueError(ToMeError, ValueError):
    """A setting or argument out of range, or in conflict with another."""


class ToMeTypeError(ToMeError, TypeError):
    """A setting or argument of the wrong type."""


class NothingToMergeError(ToMeError, ValueError):
    """A pipeline or model without a block that these settings could merge."""


class UserError(ToMeError):
    """Wrong input to the command line, explained in one line."""


class UncompilableError(ToMeError):
    """Why a call cannot become a program, as a clause; Paddle computes it instead."""
