"""The parser of the program, which suggests the right option for a misspelled one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.settings.types import truncated_repr


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A compact layout."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _format_text(self, text: str) -> str:
        formatted = super()._format_text(text)
        return formatted[:-1] if self._current_indent else formatted  # no empty line after the words of a group


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose errors are a ``UserError``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            suggestion = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{suggestion}") from None

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments; argparse calls this on the chosen command's parser."""
        args = sys.argv[1:] if args is None else list(args)
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            suggestion = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            command = self.prog.partition(" ")[2] or self.prog
            self.error(f"{truncated_repr(unknown[0])} is not an argument of {command}{suggestion}")
        for option, _, value in (arg.partition("=") for arg in args if arg.startswith("--")):
            if value == "--":  # argparse makes an empty list of it, whatever the type
                self.error(f"argument {option}: '--' is not a value")
        return parsed, unknown

    def add_commands(self, commands: Mapping[str, ModuleType], metavar: str) -> None:
        """Add the command of each module: its ``HELP``, ``add_arguments(parser)``, ``run(args)``, maybe ``EXAMPLES``.

        Parsed arguments have the chosen command's module as ``command``.
        """
        chosen = self.add_subparsers(metavar=metavar, title=f"{metavar.lower()}s", required=True, prog=self.prog)
        for name, module in commands.items():
            epilog = getattr(module, "EXAMPLES", None)
            parser = chosen.add_parser(name, help=module.HELP, description=module.HELP, epilog=epilog)
            module.add_arguments(parser)
            if hasattr(module, "run"):  # a command that only groups others has none
                parser.usage = "%(prog)s [options]"
                parser.set_defaults(command=module)
                parser.add_argument("--no-keep-memory", dest="keep_memory", action="store_false",
                                    help="return freed memory at once, for shared CPUs")
