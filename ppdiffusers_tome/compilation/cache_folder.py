"""The folder of this package in the user's cache."""

import os
from pathlib import Path


def find_cache_folder() -> Path:
    """Return this package's folder in ``~/.cache``, or in ``XDG_CACHE_HOME``."""
    # ``Path.home`` raises a RuntimeError for a user without a home.
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ppdiffusers_tome"
