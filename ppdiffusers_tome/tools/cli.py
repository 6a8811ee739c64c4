"""The program ``ppdiffusers-tome``: finds the command, runs it, and says in one line what is wrong.

Nothing here imports Paddle, which takes seconds: help and mistyped arguments answer at once.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.tools.commands import commands
from ppdiffusers_tome.tools.many_prompts.ranks import end
from ppdiffusers_tome.version import __version__

PROGRAM = "ppdiffusers-tome"
OK, BAD_INPUT, INTERRUPTED = 0, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        argv: the arguments; ``None`` means the process's.

    Returns:
        The exit code: 0, 2 when something given cannot be used (one line on stderr says what), 130 after Ctrl-C.
    """
    try:
        args = _parse(sys.argv[1:] if argv is None else list(argv))
        return args.run(args) or OK
    except SystemExit as stop:  # --help and --version
        return int(stop.code or OK)
    except ToMeError as error:
        print(f"{PROGRAM}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"\n{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED


def program() -> NoReturn:
    """The process ``ppdiffusers-tome``: ``main``, and then its end."""
    end(main())


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all other errors of the program."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Of "--prompt=--" argparse makes an empty list, which is no value of any type.
        if action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "'--' is no value")
        return super()._get_values(action, arg_strings)


def _parser() -> tuple[_Parser, dict[str, _Parser]]:
    """The parser of the program and those of its commands."""
    parser = _Parser(
        prog=PROGRAM,
        description="Token merging for diffusion models on PaddlePaddle: the same pictures, faster.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    chosen = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    parsers = {}
    for name, module in commands().items():
        parsers[name] = chosen.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=getattr(module, "EXAMPLES", None),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(parsers[name])
        parsers[name].set_defaults(run=module.run)
    return parser, parsers


def _parse(argv: list[str]) -> argparse.Namespace:
    parser, parsers = _parser()
    if not argv:
        parser.error(f"no command was given; the commands are {', '.join(parsers)}")
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        command = parsers[args.command]
        known = [option for action in command._actions for option in action.option_strings]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        remedy = f"; did you mean {close[0]}?" if close else ""
        command.error(f"{unknown[0]!r} is no argument of {args.command}{remedy}")
    return args
