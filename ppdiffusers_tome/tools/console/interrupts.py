"""Ctrl-C that ends a command wherever it comes."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_RETRY_SECONDS = 0.05
_CLEANUP_SECONDS = 1.0


@contextmanager
def keep_interrupts() -> Iterator[threading.Event]:
    """Lose no Ctrl-C within this context; the event is set once one has come.

    Python prints and drops what is raised in finalizers and callbacks of weak references, which run often while a
    program is traced: an interrupt that is dropped there is raised again a moment later. Libraries may turn one into an
    error of their own, or swallow it. A second interrupt within a second does not stop the cleanup after the first.
    """
    came, last = threading.Event(), [0.0]
    # Where Ctrl-C is ignored, as in the background of a shell, it stays ignored.
    if threading.current_thread() is not threading.main_thread() or not _has_default_handler():
        yield came
        return

    def interrupt(*_: Any) -> None:
        if time.monotonic() - last[0] >= _CLEANUP_SECONDS:
            last[0] = time.monotonic()
            came.set()
            raise KeyboardInterrupt

    def retry_dropped(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)
            return
        last[0] = 0.0
        retry = threading.Timer(_RETRY_SECONDS, _thread.interrupt_main)
        retry.daemon = True
        retry.start()

    hook, sys.unraisablehook = sys.unraisablehook, retry_dropped
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook


def restore_system_interrupts() -> None:
    """Let Ctrl-C end the process at once, without a traceback."""
    if _has_default_handler():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _has_default_handler() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
