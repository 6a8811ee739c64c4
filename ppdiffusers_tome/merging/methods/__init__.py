"""Merging methods: what becomes of similar tokens. One file a method, each with a ``METHOD``.

Found by this folder; Paddle is not needed to know them.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from ppdiffusers_tome.merging.methods.method import Method


@lru_cache(maxsize=1)
def methods() -> dict[str, Method]:
    """Every method of this folder, by name of its file."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "method")
    return {name: importlib.import_module(f"{__name__}.{name}").METHOD for name in names}
