"""The program's commands: one file each, found by this folder.

A command's file has ``HELP`` (a sentence), ``add_arguments(parser)`` and ``run(args) -> None | int``. It must import
neither Paddle nor anything else that is slow before ``run``: ``ppdiffusers-tome --help`` imports every command.
What commands share is in ``tools.console``.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def commands() -> dict[str, ModuleType]:
    """Every command of this folder by its name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}") for name in names}
