"""The program's benchmarks: one file each, found by this folder.

A benchmark's file is like a command's: ``HELP`` (a sentence), ``EXAMPLES``, ``add_arguments(parser)`` and
``run(args)``; it imports nothing slow before ``run``. What benchmarks share is in ``tools.bench``.
"""

from __future__ import annotations

from types import ModuleType

from ppdiffusers_tome.tools.cli.console.parsing import find_commands


def benches() -> dict[str, ModuleType]:
    """Every benchmark of this folder by its name."""
    return find_commands(__path__, __name__)
