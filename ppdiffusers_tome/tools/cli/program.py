"""The program ``ppdiffusers-tome``: finds the command, runs it, and writes in one line what is wrong.

Nothing here imports Paddle, which takes seconds: help and mistyped arguments answer at once.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.tools.batch.ranks import exit_process
from ppdiffusers_tome.tools.cli.commands import commands
from ppdiffusers_tome.tools.cli.console.interrupts import Interrupts, end_at_once
from ppdiffusers_tome.tools.cli.console.parsing import Parser
from ppdiffusers_tome.tools.cli.console.process import prepare_process
from ppdiffusers_tome.tools.measure.out_of_memory import is_out_of_memory
from ppdiffusers_tome.version import __version__

PROGRAM = "ppdiffusers-tome"
OK, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        argv: the arguments; ``None`` means the process's.

    Returns:
        The exit code: 0, 2 when something given cannot be used (one line on stderr says what), 130 after Ctrl-C, 141
        when nobody reads the output any more.
    """
    with Interrupts() as interrupts:
        try:
            code = _code_of(sys.argv[1:] if argv is None else list(argv), interrupts)
            if not interrupts.came:  # or it was swallowed, and the command ended as if all were done
                return code
        except KeyboardInterrupt:
            pass
        return _interrupted()


def _code_of(given: Sequence[str], interrupts: Interrupts) -> int:
    """The exit code of a run with these arguments; what is wrong is written, unless that is an interrupt.

    Raises:
        KeyboardInterrupt: Ctrl-C came.
    """
    parser = Parser(
        prog=PROGRAM, description="Token merging for diffusion models on PaddlePaddle: the same pictures, faster."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    known = commands()
    parser.add_commands(known, "COMMAND")
    args = None
    try:
        if not given:
            parser.error(f"no command was given; the commands are {', '.join(known)}")
        args = parser.parse_args(given)
        prepare_process(keep_memory=args.keep_memory)
        code = args.run(args) or OK
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # --help and --version
        return int(stop.code or OK)
    except BrokenPipeError:
        # Whoever read the output is gone (`| head`); results are written before anything is printed.
        with suppress(OSError):  # one that is no file has nothing left to write
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if interrupts.came:  # and a library has made an error of it
            raise KeyboardInterrupt from None
        if isinstance(error, ToMeError):
            print(f"{PROGRAM}: error: {' '.join(str(error).split())}", file=sys.stderr)
            return BAD_INPUT
        if not is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        chunked = getattr(args, "chunked_attention", True)  # the command may have no such option
        remedy = "make pictures smaller" if chunked else "make pictures smaller, or give --chunked-attention"
        print(f"{PROGRAM}: error: there is not enough memory ({reason}); {remedy}", file=sys.stderr)
        return BAD_INPUT


def _interrupted() -> int:
    line = "\n" if sys.stderr.isatty() else ""  # behind the terminal's ^C
    print(f"{line}{PROGRAM}: interrupted", file=sys.stderr)
    return INTERRUPTED


def program() -> NoReturn:
    """What the process does: ``main``, and then its end."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may have letters that a terminal lacks
    code = main()
    end_at_once()
    exit_process(code)
