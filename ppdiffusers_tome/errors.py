"""Errors of this package; those of wrong arguments are built-in errors, too."""


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
    """A call that cannot become a program, so that Paddle computes it."""
