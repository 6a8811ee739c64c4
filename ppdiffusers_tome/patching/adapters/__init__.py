"""Block classes whose tokens can merge: an ``ADAPTER`` in each file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from ppdiffusers_tome.patching.adapters.adapter import BlockAdapter


@lru_cache(maxsize=1)
def adapters() -> tuple[BlockAdapter, ...]:
    """Return every adapter of this folder, sorted by file name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "adapter")
    return tuple(importlib.import_module(f"{__name__}.{name}").ADAPTER for name in names)
