"""Which versions of ppdiffusers this package was tested with."""

from __future__ import annotations

from ppdiffusers_tome.version import __version__

TESTED = ("0.24.1", "0.29.0", "0.29.1")


def never_tested(version: str) -> str | None:
    """What to know of a version of ppdiffusers; None where it was tested."""
    if version in TESTED:
        return None
    return (
        f"ppdiffusers_tome {__version__} was never tested with ppdiffusers {version}, but with "
        f"{', '.join(TESTED[:-1])} and {TESTED[-1]}; compare a picture with and without it before you rely on it "
        "(ppdiffusers-tome compare)"
    )
