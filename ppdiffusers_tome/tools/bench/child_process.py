"""Work in a child process, which alone ends when memory runs out."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from ppdiffusers_tome.cpu.process import keep_freed_memory, keeps_freed_memory
from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.tools.measure import out_of_memory

T = TypeVar("T")
_MAX_OUTPUT = 3000  # characters that an error quotes of a failed process


def iterate_in_child(work: Callable[..., Iterator[T]], *args: object) -> Iterator[T]:
    """Iterate over ``work(*args)`` in a fresh Python, which ends with the iteration.

    Args:
        work: a function of a module; its arguments and what it yields can be pickled.

    Raises:
        MemoryError: there was not enough memory for it.
        ToMeError: the work raised it.
        RuntimeError: the process failed for another reason.
    """
    spawning = multiprocessing.get_context("spawn")
    receiver, sender = spawning.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output"
        process = spawning.Process(target=_run, args=(sender, log, keeps_freed_memory(), work, args), daemon=True)
        process.start()
        sender.close()
        try:
            with suppress(EOFError, OSError):  # the end, or a part of a message
                while True:
                    message = receiver.recv()
                    if isinstance(message, ToMeError):
                        raise message
                    yield message
            process.join()
        finally:
            if process.is_alive():
                process.kill()
                process.join()
            receiver.close()
        output = log.read_text(errors="replace")[-_MAX_OUTPUT:] if log.exists() else ""
    status = process.exitcode or 0
    if out_of_memory.is_memory_exit(status, output):
        raise MemoryError(output)
    if status:
        raise RuntimeError(f"the process of {work.__name__}{args} ended with status {status}:\n{output}")


def _run(sender: Connection, log: Path, keep_memory: bool, work: Callable[..., Iterator[object]], args: tuple) -> None:
    """Do the work in the child; its output goes to a file."""
    if keep_memory:
        keep_freed_memory()
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    out_of_memory.die_first()
    try:
        for value in work(*args):
            sender.send(value)
    except ToMeError as error:
        sender.send(error)
    except Exception as error:
        if not out_of_memory.is_out_of_memory(error):
            raise
        sys.exit(out_of_memory.EXIT_STATUS)
