"""Versions of installed packages, read without importing them."""

from __future__ import annotations

from importlib import metadata


def installed_version(package: str) -> str | None:
    """Return a package's version by its registry name, or None without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
