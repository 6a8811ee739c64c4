"""Block classes whose tokens can be merged. One file per class, each with an ``ADAPTER``; found by this folder."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from ppdiffusers_tome.patching.adapters.adapter import BlockAdapter


@lru_cache(maxsize=1)
def adapters() -> tuple[BlockAdapter, ...]:
    """Every adapter of this folder, by name of its file."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "adapter")
    return tuple(importlib.import_module(f"{__name__}.{name}").ADAPTER for name in names)
