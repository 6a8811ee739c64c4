"""The parser of the program and its commands: errors are one line, a mistyped option is answered with the right one."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.cli.console.process import add_process_arguments


class Parser(argparse.ArgumentParser):
    """Like argparse's, but options cannot be abbreviated, texts keep their lines, and errors are a ``UserError``."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's, of a value or a command that has to be one of several; its message says which was meant."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            meant = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{meant}") from None

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """As argparse's, which hands a command's arguments to the command's parser; but nothing may be unknown."""
        args = sys.argv[1:] if args is None else list(args)
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = ["--help", *re.findall(r"--[\w-]+", self.format_usage())]
            what = self.prog.partition(" ")[2] or self.prog
            meant = did_you_mean(unknown[0].partition("=")[0], options)
            self.error(f"{truncated_repr(unknown[0])} is not an argument of {what}{meant}")
        for option, _, value in (arg.partition("=") for arg in args if arg.startswith("--")):
            if value == "--":  # of which argparse makes an empty list, no value of any type
                self.error(f"argument {option}: '--' is not a value")
        return parsed, unknown

    def add_commands(self, commands: Mapping[str, ModuleType], metavar: str) -> list[Parser]:
        """Add a command for each module, by its ``HELP``, ``add_arguments(parser)``, ``run(args)``, maybe ``EXAMPLES``.

        Args:
            commands: modules by the names of their commands.
            metavar: what stands for a command in the usage.

        Returns:
            The commands' parsers. The namespace that this parser makes has the chosen command's ``run``.
        """
        chosen = self.add_subparsers(metavar=metavar, title=f"{metavar.lower()}s", required=True)
        parsers = []
        for name, module in commands.items():
            parser = chosen.add_parser(
                name, help=module.HELP, description=module.HELP, epilog=getattr(module, "EXAMPLES", None)
            )
            module.add_arguments(parser)
            if hasattr(module, "run"):  # a command that only groups others has none
                parser.set_defaults(run=module.run)
                add_process_arguments(parser)
            parsers.append(parser)
        return parsers


def find_commands(folder: Iterable[str], package: str) -> dict[str, ModuleType]:
    """The modules of a package by their names as commands, ``-`` for ``_``; packages in it are none.

    Args:
        folder: the package's ``__path__``.
        package: its full name.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(folder) if not module.ispkg)
    return {name.replace("_", "-"): importlib.import_module(f"{package}.{name}") for name in names}
