"""The program ``ppdiffusers-tome``, which prints errors as one line.

Nothing here imports Paddle, which takes seconds: help and mistyped arguments are answered at once.
"""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.tools.cli.commands import import_commands
from ppdiffusers_tome.tools.console.output import shorten_warnings
from ppdiffusers_tome.tools.console.parsing import Parser, add_commands, parse
from ppdiffusers_tome.tools.console.process import prepare_process, require_modules
from ppdiffusers_tome.tools.measure.memory import explain_shortage
from ppdiffusers_tome.version import __version__

PROGRAM = "ppdiffusers-tome"
OK, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 2, 130, 141
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code is that of ``run_command``."""
    parser = Parser(prog=PROGRAM, description="Token merging for diffusion models on PaddlePaddle.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    add_commands(parser, import_commands())
    return run_command(parser, argv)


def run_command(parser: Parser, argv: Sequence[str] | None = None) -> int:
    """Run the command that a parser of ``add_commands`` chooses.

    Returns:
        The exit code: 0; 2 for input that cannot be used (one line on stderr); 130 after Ctrl-C; 141 when the output
        is a closed pipe.
    """
    args = None
    try:
        with suppress(SystemExit):  # of --help and --version
            args = parse(parser, sys.argv[1:] if argv is None else argv)
        if args is not None:
            if args.needs_modules:
                require_modules(args.parser.prog.split()[-1])
                prepare_process(keep_memory=args.keep_memory)
            with shorten_warnings():
                args.command.run(args)
        sys.stdout.flush()
        return OK
    except BrokenPipeError:  # as with `| head`; results are written before anything is printed
        _drop_output()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        line = "\n" if sys.stderr.isatty() else ""  # after the terminal's ^C
        print(f"{line}{parser.prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        message = _explain(error, args)
        if message is None:
            raise
        with suppress(OSError):  # standard error may be what is full
            print(f"{parser.prog}: error: {' '.join(message.split())}", file=sys.stderr)
        return BAD_INPUT


def _explain(error: Exception, args: Any) -> str | None:
    """Return what is wrong; None for a fault of this program."""
    if isinstance(error, ToMeError):
        return str(error)
    if shortage := explain_shortage(error):
        remedy = ""
        if not any(getattr(args, name, True) for name in ("compile", "xformers")):  # the command has both, not used
            remedy = ", or give --xformers" if " on GPU" in shortage else ", or on a CPU give --compile"
        return f"there is not enough memory ({shortage}); make images smaller{remedy}"
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        if error.filename is None:
            _drop_output()
        place = error.filename or "standard output"
        return f"{place} cannot be used ({error.strerror}); make room there, or take another place"
    return None


def _drop_output() -> None:
    """Drop what is left for standard output, or Python would fail."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
