"""The processes that ``python -m paddle.distributed.launch`` started, and what they send each other.

Dividing the batches needs no messages, but some moments do: nobody counts what is left before rank 0 has put the folder
in order, rank 0 reports only when all are finished, and nobody ends while another still listens. They use Paddle's own
process group and the store behind it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from ppdiffusers_tome.errors import UserError

T = TypeVar("T")

_PAUSE = 0.5  # seconds
_PATIENCE = 60.0


@dataclass(frozen=True)
class Ranks:
    """This process among all of a run: ``rank`` from 0 to ``size - 1``."""

    rank: int
    size: int

    @classmethod
    def from_environment(cls) -> Ranks:
        """As Paddle's launcher says, which is what ``paddle.distributed.get_rank`` reads too; else the only process.

        Raises:
            UserError: the environment contradicts itself.
        """
        given = os.environ.get("PADDLE_TRAINER_ID", "0"), os.environ.get("PADDLE_TRAINERS_NUM", "1")
        if not all(number.isdecimal() for number in given) or not int(given[0]) < int(given[1]):
            raise UserError(
                f"PADDLE_TRAINER_ID={given[0]} and PADDLE_TRAINERS_NUM={given[1]} name no rank; start many processes "
                "with python -m paddle.distributed.launch, and one without these variables"
            )
        return cls(int(given[0]), int(given[1]))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def join(self) -> None:
        """Make Paddle's process group, gloo on a CPU and NCCL on GPUs; one process needs none."""
        if self.size > 1:
            import paddle

            paddle.distributed.init_parallel_env()

    def total(self, numbers: Sequence[int], moment: str) -> list[int]:
        """Add up numbers over all ranks, whose lists are as long; returns when all have come here.

        Args:
            numbers: those of this rank.
            moment: what ranks wait for; a name that was not used before.

        Raises:
            UserError: a rank is gone.
        """
        if self.size == 1:
            return list(numbers)
        import paddle

        tensor = paddle.to_tensor(list(numbers), dtype="int64")
        with _all_there():
            # However long one draws: gloo's all_reduce gives up after 30 seconds.
            self._meet(moment)
            paddle.distributed.all_reduce(tensor)
        return [int(number) for number in tensor.numpy()]

    def leave(self) -> None:
        """After the last ``total``: returns when this process may end and leave the others unharmed.

        One that ends closes its connections, and gloo then fails an ``all_reduce`` that another has not yet returned
        from although its numbers are there; rank 0 takes the store with it. So nobody ends before all have the sum,
        and rank 0 is the last.

        Raises:
            UserError: a rank is gone.
        """
        if self.size == 1:
            return
        with _all_there():
            self._meet("has the sum")
            if self.is_first:
                self._wait_for("ends", self.size - 1)
            else:
                _store().add(_key("ends"), 1)

    def _meet(self, moment: str) -> None:
        """Wait until all ranks are there."""
        _store().add(_key(moment), 1)
        self._wait_for(moment, self.size)

    def _wait_for(self, moment: str, number: int) -> None:
        """Wait until so many ranks are there."""
        store, waited = _store(), 0.0
        while (arrived := store.add(_key(moment), 0)) < number:
            time.sleep(_PAUSE)
            waited += _PAUSE
            if waited == _PATIENCE:
                print(
                    f"rank {self.rank} waits for {number - arrived} others; if a machine is gone, stop all and "
                    "give the same command again", file=sys.stderr, flush=True,
                )  # fmt: skip

    def shard(self, things: Sequence[T], turn: int = 0) -> list[T]:
        """What falls to this rank: every ``size``-th, so that all ranks have as many, to one.

        Args:
            things: the same on all ranks.
            turn: another number at each call hands what is over to other ranks.
        """
        return list(things[(self.rank + turn) % self.size :: self.size])


def end(code: int) -> NoReturn:
    """End the process with an exit code.

    In a process group at once, when what was said is written: the store of Paddle 2.6.2 runs on in its thread while the
    C++ libraries take apart what it uses, and now and then, on a busy machine, it aborted a rank that had done all its
    work, so that the launcher called the whole run failed.
    """
    distributed = sys.modules.get("paddle.distributed")
    if distributed is None or not distributed.is_initialized():
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads any more
            stream.flush()
    os._exit(code)


def _store() -> Any:
    from paddle.base import core

    return core.create_or_get_global_tcp_store()  # the one that the process group was made with


def _key(moment: str) -> str:
    return f"ppdiffusers_tome/{moment}"


@contextmanager
def _all_there() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:  # a broken connection is a ValueError of Paddle's
        raise UserError(
            "the process of rank 0, or another one, is gone; give the same command again, which resumes from here"
        ) from error
