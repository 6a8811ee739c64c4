"""What a user of the program need not read, and one way of saying what they should."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any


def print_line(text: str) -> None:
    """A line of results on standard output, above the progress bars where there are any."""
    from tqdm import tqdm

    tqdm.write(text, file=sys.stdout)


def warn(text: str) -> None:
    """A line on standard error that the user should read."""
    from tqdm import tqdm

    tqdm.write(f"warning: {text}", file=sys.stderr)


def log(text: str) -> None:
    """A line for whoever sits at a terminal and waits; none where nobody does."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


@contextmanager
def shorten_warnings() -> Iterator[None]:
    """For as long as this lasts, Python's warnings come as one line, like all that the program says."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warn(" ".join(str(message).split()))
        yield


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Import the libraries and, for as long as this lasts, keep to their real warnings.

    Silenced are what they say while they are imported, the loading bars and INFO lines of ppdiffusers and paddlenlp,
    and their words about truncated prompts, which the program says itself. What is left of Python's warnings comes
    as one line. All is as before afterwards.
    """
    if "ppdiffusers" not in sys.modules:
        log("loading Paddle and ppdiffusers ...")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _no_word_about_threads():
            import paddle  # noqa: F401
        import ppdiffusers
        from paddlenlp.utils.log import logger as paddlenlp_logger
        from ppdiffusers.utils import logging as ppdiffusers_logging
    bars = ppdiffusers_logging.is_progress_bar_enabled()
    level = paddlenlp_logger.logger.level
    ppdiffusers_logging.disable_progress_bar()
    paddlenlp_logger.set_level("ERROR")
    filtered = [logging.getLogger(cls.__module__) for cls in _pipeline_classes(ppdiffusers)]
    for logger in filtered:
        logger.addFilter(_not_about_truncation)
    try:
        with shorten_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", module=r"paddle\b.*")
            yield
    finally:
        for logger in filtered:
            logger.removeFilter(_not_about_truncation)
        paddlenlp_logger.set_level(logging.getLevelName(level))
        if bars:
            ppdiffusers_logging.enable_progress_bar()


@contextmanager
def silence_ppdiffusers() -> Iterator[None]:
    """Hold back ppdiffusers' warnings around a call that warns although all is well."""
    logger = logging.getLogger("ppdiffusers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _no_word_about_threads() -> Iterator[None]:
    """Paddle prints two lines on standard error whenever it may use more than one thread."""
    said = io.StringIO()
    with redirect_stderr(said):
        yield
    sys.stderr.writelines(line for line in said.getvalue().splitlines(keepends=True) if "OMP_NUM_THREADS" not in line)


def _pipeline_classes(ppdiffusers: Any) -> list[type]:
    names = ("StableDiffusion{}Pipeline", "StableDiffusionXL{}Pipeline")
    return [getattr(ppdiffusers, name.format(kind)) for name in names for kind in ("", "ControlNet")]


def _not_about_truncation(record: logging.LogRecord) -> bool:
    return "truncated because CLIP can only handle" not in record.getMessage()
