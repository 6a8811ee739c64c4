"""The program ``ppdiffusers-tome``: finds the command, runs it, and prints errors as one line.

Nothing here imports Paddle, which takes seconds: help and mistyped arguments are answered at once.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.tools.cli.commands import commands
from ppdiffusers_tome.tools.console.extras import require_extra
from ppdiffusers_tome.tools.console.output import shorten_warnings
from ppdiffusers_tome.tools.console.parsing import Parser
from ppdiffusers_tome.tools.console.process import prepare_process
from ppdiffusers_tome.tools.measure.out_of_memory import is_out_of_memory
from ppdiffusers_tome.tools.ranks import exit_process
from ppdiffusers_tome.version import __version__

PROGRAM = "ppdiffusers-tome"
OK, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        argv: the arguments; None for those of the process.

    Returns:
        The exit code: 0; 2 for input that cannot be used (one line on stderr); 130 after Ctrl-C; 141 when the output
        is a closed pipe.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = Parser(prog=PROGRAM, description="Token merging for diffusion models on PaddlePaddle.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    known = commands()
    parser.add_commands(known, "COMMAND")
    args = None
    try:
        if not argv:
            parser.error(f"no command was given; the commands are {', '.join(known)}")
        args = parser.parse_args(argv)
        require_extra(getattr(args.command, "EXTRA", "cli"), argv[0])
        prepare_process(keep_memory=args.keep_memory)
        with shorten_warnings():
            code = args.command.run(args) or OK
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # --help and --version
        return int(stop.code or OK)
    except BrokenPipeError:  # as with `| head`; results are written before anything is printed
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        line = "\n" if sys.stderr.isatty() else ""  # after the terminal's ^C
        print(f"{line}{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        message = " ".join(str(error).split())
        if not isinstance(error, ToMeError):
            if not is_out_of_memory(error):
                raise
            message = f"there is not enough memory ({message[:200] or type(error).__name__}); make images smaller"
            if not getattr(args, "chunked_attention", True):  # the command may have no such option
                message += ", or give --chunked-attention"
        print(f"{PROGRAM}: error: {message}", file=sys.stderr)
        return BAD_INPUT


def program() -> NoReturn:
    """Run the program and end the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may have letters that a terminal lacks
    code = main()
    exit_process(code)
