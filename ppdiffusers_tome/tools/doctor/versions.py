"""The versions of ppdiffusers that this package was tested with."""

from __future__ import annotations

TESTED = ("0.24.1", "0.29.0", "0.29.1")


def never_tested(version: str) -> str | None:
    """Return a warning for an untested version of ppdiffusers, or None."""
    if version in ("", *TESTED):
        return None
    return (
        f"this package was never tested with ppdiffusers {version}, but with {', '.join(TESTED)}; compare an image "
        "with and without it before you rely on it (ppdiffusers-tome compare)"
    )
