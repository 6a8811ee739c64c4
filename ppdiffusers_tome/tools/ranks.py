"""The processes that ``python -m paddle.distributed.launch`` started, and the few values that they exchange.

They meet in the TCP store of Paddle's launcher, which rank 0 serves. No process group is made: gloo gives up after 30
seconds of waiting, and generating images exchanges no tensors.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

from ppdiffusers_tome.errors import UserError

_PREFIX = "ppdiffusers_tome/"  # of keys in the store
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Ranks:
    """This process among all of a run: ``rank`` from 0 to ``size - 1``."""

    rank: int
    size: int

    @classmethod
    def from_environment(cls) -> Ranks:
        """Read the rank that Paddle's launcher assigned; 0 of 1 without one."""
        rank, size = os.environ.get("PADDLE_TRAINER_ID", "0"), os.environ.get("PADDLE_TRAINERS_NUM", "1")
        if not (rank.isdecimal() and size.isdecimal()) or int(rank) >= int(size):
            raise UserError(
                f"PADDLE_TRAINER_ID={rank} and PADDLE_TRAINERS_NUM={size} name no rank; start many processes with "
                "python -m paddle.distributed.launch, and one without these variables"
            )
        return cls(int(rank), int(size))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def exchange(self, value: Any, moment: str) -> list[Any]:
        """Wait for all ranks, however long, and return their values in order.

        Args:
            value: of this rank, anything that JSON can hold.
            moment: a name that no earlier exchange of the run had.
        """
        if self.size == 1:
            return [value]
        with _open_store() as store:
            store.set(f"{_PREFIX}{moment}/{self.rank}", json.dumps(value))
            store.add(f"{_PREFIX}{moment}", 1)
            self._wait_for(moment, self.size)
            return [json.loads(store.get(f"{_PREFIX}{moment}/{rank}")) for rank in range(self.size)]

    def check_first_is_alive(self) -> None:
        """Raise a ``UserError`` if rank 0, which holds the folder's lock, is gone."""
        if not self.is_first:
            with _open_store() as store:
                store.add(f"{_PREFIX}alive", 0)

    def leave(self) -> None:
        """Wait until this process may end; rank 0, which serves the store, is last."""
        if self.size > 1:
            with _open_store() as store:
                store.add(f"{_PREFIX}leave", 1)
                if self.is_first:
                    self._wait_for("leave", self.size)

    def _wait_for(self, moment: str, count: int) -> None:
        while _get_store().add(f"{_PREFIX}{moment}", 0) < count:
            time.sleep(_POLL_SECONDS)


def exit_process(code: int) -> NoReturn:
    """End the process with an exit code, at once where ranks have met.

    The store of Paddle 2.6.2 runs on in its thread while C++ libraries are torn down, which now and then aborted a rank
    that had finished, so that the launcher called the whole run failed.
    """
    if not _get_store.cache_info().currsize:
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a closed pipe
            stream.flush()
    os._exit(code)


@cache
def _get_store() -> Any:
    from paddle.base import core

    return core.create_or_get_global_tcp_store()


@contextmanager
def _open_store() -> Iterator[Any]:
    """Return the store; a lost connection is a ``UserError``."""
    try:
        yield _get_store()
    except (RuntimeError, ValueError, OSError) as error:  # Paddle raises a ValueError for a broken connection
        message = "the process of rank 0 is gone; give the same command again, which resumes from here"
        raise UserError(message) from error
