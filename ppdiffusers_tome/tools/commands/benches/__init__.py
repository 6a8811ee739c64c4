"""The program's benchmarks: one file each, found by this folder.

A benchmark's file is like a command's: ``HELP`` (a sentence), ``EXAMPLES``, ``add_arguments(parser)`` and
``run(args)``; it imports nothing slow before ``run``. What benchmarks share is in ``tools.bench``.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def benches() -> dict[str, ModuleType]:
    """Every benchmark of this folder by its name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}") for name in names}
