"""Work in a process of its own, so that running out of memory ends that process and no more."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from ppdiffusers_tome.cpu.process import keep_freed_memory, keeps_freed_memory
from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.tools.measure import out_of_memory

T = TypeVar("T")
_MOST_WORDS = 3000  # of a process that failed


def in_own_process(work: Callable[..., Iterator[T]], *args: object) -> Iterator[T]:
    """Iterate over ``work(*args)``, which runs in a fresh Python; it ends as soon as nobody wants more.

    Args:
        work: a function of a module; what it is given and yields can be pickled.

    Raises:
        MemoryError: there was not enough for it.
        ToMeError: the work raised it.
        RuntimeError: the process failed for another reason.
    """
    kills = out_of_memory.num_memory_kills()
    spawning = multiprocessing.get_context("spawn")
    receiver, sender = spawning.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words"
        process = spawning.Process(target=_answer, args=(sender, words, keeps_freed_memory(), work, args), daemon=True)
        process.start()
        sender.close()
        try:
            with suppress(EOFError, OSError):  # nothing more, or half of something
                while True:
                    answer = receiver.recv()
                    if isinstance(answer, ToMeError):
                        raise answer
                    yield answer
            process.join()
        finally:
            if process.is_alive():
                process.kill()
                process.join()
            receiver.close()
        last = words.read_text(errors="replace")[-_MOST_WORDS:] if words.exists() else ""
    status = process.exitcode or 0
    if status and out_of_memory.memory_ended(status, kills, last):
        raise MemoryError(last)
    if status:
        raise RuntimeError(f"the process of {work.__name__}{args} ended with status {status}:\n{last}")


def _answer(
    sender: Connection, words: Path, keep_memory: bool, work: Callable[..., Iterator[object]], args: tuple
) -> None:
    """The process: what libraries print goes to a file, of which the last is read if it fails."""
    if keep_memory:
        keep_freed_memory()
    with words.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    out_of_memory.die_first()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for value in work(*args):
            sender.send(value)
    except ToMeError as error:
        sender.send(error)
    except Exception as error:
        if not out_of_memory.is_out_of_memory(error):
            raise
        sys.exit(out_of_memory.EXIT_STATUS)


def _end_with_parent() -> None:
    """When the parent is gone, nobody waits for an answer."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
