"""Ctrl-C that ends a command wherever it comes."""

from __future__ import annotations

import _thread
import math
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

_RETRY_SECONDS = 0.05
_CLEANUP_SECONDS = 1.0


class Interrupts:
    """A context in which no Ctrl-C is lost.

    Python prints and drops what is raised in finalizers and callbacks of weak references, which run often while a
    program is traced: an interrupt that is dropped there is raised again a moment later. Libraries may turn one into an
    error of their own, or swallow it. A second interrupt within a second does not stop the cleanup after the first.

    Attributes:
        came: True once an interrupt has come.
    """

    def __init__(self) -> None:
        self.came = False
        self._raised = -math.inf
        self._retry: threading.Timer | None = None

    def __enter__(self) -> Interrupts:
        self._hook = sys.unraisablehook
        sys.unraisablehook = self._retry_dropped
        # Where Ctrl-C is ignored, as in the background of a shell, it stays ignored.
        self._listens = threading.current_thread() is threading.main_thread() and _has_default_handler()
        if self._listens:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = self._hook

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._raised >= _CLEANUP_SECONDS:
            self.came, self._raised = True, now
            raise KeyboardInterrupt

    def _retry_dropped(self, dropped: Any) -> None:
        if not (self._listens and issubclass(dropped.exc_type, KeyboardInterrupt)):
            self._hook(dropped)
            return
        self._raised = -math.inf
        self._retry = threading.Timer(_RETRY_SECONDS, _thread.interrupt_main)
        self._retry.daemon = True
        self._retry.start()


def restore_system_interrupts() -> None:
    """Let Ctrl-C end the process at once, without a traceback."""
    if _has_default_handler():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _has_default_handler() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
