"""The program's commands: one module each, found in this folder.

A command has ``HELP`` (a sentence), ``add_arguments(parser)`` and ``run(args)``, and may have ``EXAMPLES`` and
``NEEDS_MODULES`` (False where it runs without the packages of the extra ``cli``). It imports neither Paddle nor
anything else that is slow before ``run``, as ``ppdiffusers-tome --help`` imports every command.
"""

import importlib
import pkgutil
from types import ModuleType


def import_commands() -> dict[str, ModuleType]:
    """Import every command of this folder, by its name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}") for name in names}
