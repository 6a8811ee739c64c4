"""Block classes whose tokens can merge, a file for each family."""

import importlib
import pkgutil
from functools import lru_cache

from ppdiffusers_tome.patching.adapters.adapter import BlockAdapter


@lru_cache(maxsize=1)
def list_adapters() -> tuple[BlockAdapter, ...]:
    """Return every adapter of this folder, sorted by file name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "adapter")
    return tuple(adapter for name in names for adapter in importlib.import_module(f"{__name__}.{name}").ADAPTERS)
