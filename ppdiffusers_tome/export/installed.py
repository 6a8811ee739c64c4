"""What is installed beside this package, told without importing it, which can take seconds."""

from __future__ import annotations

from importlib import metadata


def installed_version(package: str) -> str | None:
    """The version of a package as its registry names it; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
