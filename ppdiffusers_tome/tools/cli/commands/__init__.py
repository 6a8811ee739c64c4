"""The program's commands: one module each, found in this folder.

A command has ``HELP`` (a sentence), ``add_arguments(parser)`` and ``run(args) -> None | int``, and may have
``EXAMPLES`` and ``EXTRA`` (the extra with its packages, "cli" by default). It imports neither Paddle nor anything else
that is slow before ``run``, as ``ppdiffusers-tome --help`` imports every command. A command that only groups others has
no ``run``.
"""

from __future__ import annotations

from types import ModuleType

from ppdiffusers_tome.tools.console.parsing import find_commands


def commands() -> dict[str, ModuleType]:
    """Import every command of this folder, by its name."""
    return find_commands(__path__, __name__)
