"""The program's commands: one file each, found by this folder.

A command's file has ``HELP`` (a sentence), ``add_arguments(parser)`` and ``run(args) -> None | int``. It must import
neither Paddle nor anything else that is slow before ``run``: ``ppdiffusers-tome --help`` imports every command.
A command that only groups others, such as ``bench``, has no ``run``. What commands share is in ``tools.cli.console``.
"""

from __future__ import annotations

from types import ModuleType

from ppdiffusers_tome.tools.cli.console.parsing import find_commands


def commands() -> dict[str, ModuleType]:
    """Every command of this folder by its name."""
    return find_commands(__path__, __name__)
