"""Lines and bars for the user, and quiet libraries."""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

from ppdiffusers_tome.errors import UserError

# The program reports the first itself; it takes configs of other schedulers on purpose.
_KNOWN_MESSAGES = ("truncated because CLIP can only handle", "are not expected and will be ignored")


def print_line(text: str) -> None:
    """Print a line of results on standard output, above any progress bars."""
    from tqdm import tqdm

    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()


def warn(text: str) -> None:
    """Print a line on standard error that the user should read."""
    from tqdm import tqdm

    tqdm.write(f"warning: {text}", file=sys.stderr)


def log(text: str) -> None:
    """Print a line on standard error before what takes a while."""
    print(text, file=sys.stderr, flush=True)


def choose_bar(position: int = 0) -> dict[str, Any]:
    """Return tqdm's options for a bar; without a terminal, for lines."""
    if sys.stderr.isatty():
        return {"position": position, "file": sys.stderr, "leave": position == 0}
    lines = {"file": _Lines(), "bar_format": "{desc}: {n_fmt} of {total_fmt}, {remaining} left"}
    return {**lines, "position": 0, "leave": False, "delay": 4, "mininterval": 4}  # in seconds


class _Lines(io.TextIOBase):
    """Standard error for bars, each state of which is a line."""

    def write(self, text: str) -> int:
        if line := text.strip():  # else it clears a bar
            print(line, file=sys.stderr, flush=True)
        return len(text)


@contextmanager
def shorten_warnings() -> Iterator[None]:
    """Print Python's warnings as one line each within this context."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warn(" ".join(str(message).split()))
        yield


@contextmanager
def import_quietly() -> Iterator[None]:
    """Import Paddle and ppdiffusers, and show of them what matters to the user.

    Loading bars and INFO lines of ppdiffusers and paddlenlp stay off for the rest of the process.
    """
    _import_libraries()
    from paddlenlp.utils.log import logger as paddlenlp_logger
    from ppdiffusers.utils import logging as ppdiffusers_logging

    ppdiffusers_logging.disable_progress_bar()
    paddlenlp_logger.set_level("ERROR")
    for handler in logging.getLogger("ppdiffusers").handlers:
        handler.addFilter(lambda record: not any(known in record.getMessage() for known in _KNOWN_MESSAGES))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", module=r"paddle\b.*")
        yield


def _import_libraries() -> None:
    """Import the libraries without their warnings, or explain why that fails."""
    if "ppdiffusers" not in sys.modules:
        log(f"loading Paddle and ppdiffusers, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 1)} ...")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with redirect_stderr(io.StringIO()) as printed:
                import paddle  # noqa: F401
            lines = printed.getvalue().splitlines(keepends=True)
            # Paddle advises against more than one thread, which is what we want.
            sys.stderr.writelines(line for line in lines if "OMP_NUM_THREADS" not in line)
            import paddlenlp.utils.log  # noqa: F401
            import ppdiffusers.utils  # noqa: F401
    except OSError as error:  # they make folders as they are imported
        raise UserError(
            f"Paddle's libraries cannot be imported, as {error.filename} cannot be written ({error.strerror}); set "
            "HOME to a folder that you may write to, such as HOME=/tmp"
        ) from error
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # in a module in C++
            raise error.__cause__ from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"Paddle or ppdiffusers cannot be imported ({reason}); ppdiffusers-tome doctor says what to install"
        ) from error
