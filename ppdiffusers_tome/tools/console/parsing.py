"""The parser of the program, which suggests options for misspelled ones."""

import argparse
import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr

_FORMATTER: Any = partial(argparse.RawDescriptionHelpFormatter, max_help_position=26)


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose errors are a ``UserError``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_FORMATTER, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def add_commands(parser: Parser, commands: Mapping[str, ModuleType]) -> None:
    """Add the command of each module: its ``HELP``, ``add_arguments(parser)``, ``run(args)``, maybe ``EXAMPLES``."""
    parser.set_defaults(parser=parser, command=None, commands=[*commands])
    chosen = parser.add_subparsers(metavar="COMMAND", title="commands", prog=parser.prog)
    for name, module in commands.items():
        epilog = getattr(module, "EXAMPLES", None)
        added = chosen.add_parser(
            name, help=module.HELP, description=module.HELP, epilog=epilog, usage=f"{parser.prog} {name} [options]"
        )
        needs_modules = getattr(module, "NEEDS_MODULES", True)
        added.set_defaults(parser=added, command=module, needs_modules=needs_modules)
        module.add_arguments(added)
        if needs_modules:
            added.add_argument("--no-keep-memory", dest="keep_memory", action="store_false",
                               help="return freed memory at once, for shared CPUs")


def parse(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the program's arguments; ``command`` is the module of the chosen command."""
    args, unknown = parser.parse_known_args(arguments)
    chosen: Parser = args.parser
    if unknown:
        known = re.findall(r"--[\w-]+", chosen.format_help().replace("--[no-]", "--"))
        suggestion = did_you_mean(unknown[0].partition("=")[0], known)
        name = chosen.prog.partition(" ")[2] or chosen.prog
        chosen.error(f"{shorten_repr(unknown[0])} is not an argument of {name}{suggestion}")
    if args.command is None:
        chosen.error(f"no command was given; the commands are {', '.join(args.commands)}")
    return args
