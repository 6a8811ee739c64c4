"""Ctrl-C that ends what runs, wherever it comes."""

from __future__ import annotations

import _thread
import math
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

_SOON = 0.05  # seconds
_TIDYING = 1.0  # seconds


class Interrupts:
    """For as long as this lasts, Ctrl-C is not lost, and it is known that it came.

    Python drops what is raised in finalizers and callbacks of weak references, of which recording a program is full: it
    prints a traceback and goes on. So an interrupt that is dropped there comes again a moment later. Libraries, too,
    may turn it into an error of their own, or swallow it.

    What tidies up after one is not cut off by another that follows at once, as where somebody presses twice, or a
    launcher hands on what the terminal has sent already. A later one ends what still runs.

    Attributes:
        came: whether it did.
    """

    def __init__(self) -> None:
        self.came = False
        self._raised = -math.inf
        self._again: threading.Timer | None = None

    def __enter__(self) -> Interrupts:
        self._hook = sys.unraisablehook
        sys.unraisablehook = self._dropped
        # Elsewhere Ctrl-C never comes, and where it is ignored, as in the background of a shell, it stays so.
        self._listens = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._listens:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = self._hook

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._raised < _TIDYING:
            return
        self.came, self._raised = True, now
        raise KeyboardInterrupt

    def _dropped(self, dropped: Any) -> None:
        if not (self._listens and issubclass(dropped.exc_type, KeyboardInterrupt)):
            self._hook(dropped)
            return
        self._raised = -math.inf
        self._again = threading.Timer(_SOON, _thread.interrupt_main)
        self._again.daemon = True
        self._again.start()


def end_at_once() -> None:
    """From now on Ctrl-C ends the process without a word, as when all is written and only its end is left."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # where it is ignored it stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
