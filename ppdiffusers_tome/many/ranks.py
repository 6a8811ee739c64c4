"""The processes that ``python -m paddle.distributed.launch`` started, and what they tell each other.

Dividing the batches needs no messages, but two moments do: nobody counts what is left before rank 0 has put the folder
in order, and rank 0 reports only when all are finished. Both use Paddle's own process group and the store behind it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

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
        try:
            self._meet(moment)
            paddle.distributed.all_reduce(tensor)
        except (RuntimeError, ValueError, OSError) as error:  # a broken connection is a ValueError of Paddle's
            raise UserError(
                "the process that is rank 0, or another, is gone; give the same command again, which goes on from here"
            ) from error
        return [int(number) for number in tensor.numpy()]

    def _meet(self, moment: str) -> None:
        """Wait until all ranks are there, however long one draws: gloo's ``all_reduce`` gives up after 30 seconds."""
        from paddle.base import core

        store = core.create_or_get_global_tcp_store()  # the one that the process group was made with
        key, waited = f"ppdiffusers_tome/{moment}", 0.0
        arrived = store.add(key, 1)
        while arrived < self.size:
            time.sleep(_PAUSE)
            waited += _PAUSE
            if waited == _PATIENCE:
                told = f"rank {self.rank} waits for {self.size - arrived} others; should a machine be gone, stop all"
                print(f"{told} and give the same command again", file=sys.stderr, flush=True)
            arrived = store.add(key, 0)

    def share(self, things: Sequence[T]) -> list[T]:
        """Every ``size``-th of the things, so that all ranks have as many, to one."""
        return list(things[self.rank :: self.size])
