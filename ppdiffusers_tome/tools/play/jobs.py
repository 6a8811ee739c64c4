"""One drawing at a time: a line of orders, and the thread that carries them out. Knows no gradio."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.tools.measure.out_of_memory import is_out_of_memory
from ppdiffusers_tome.tools.play.requests import Order, RefusedError

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.generation.results import GeneratedImage
    from ppdiffusers_tome.tools.play.studio import MergedMap, Remembered, Studio

WAITING = "waiting"
_MOST_WAITING = 8


class CancelledError(Exception):
    """Nobody waits for the picture any more."""


class Job:
    """An order on its way. The thread of the line writes what whoever ordered reads.

    Args:
        order: what is wanted.
        unmerged: the unmerged picture, where it was drawn before.

    Attributes:
        order: what is wanted.
        unmerged, merged, map: what is there of it by now.
        remembered: whether the unmerged picture was there before.
        stage: ``waiting``, or one of ``studio.STAGES``.
        done, calls: how many calls of the denoiser of how many in this stage are done.
        failure: why there will be no more; None where all is well.
        finished: whether all that is wanted is there.
        ended: whether nothing changes any more.
        version: how often anything changed.
    """

    def __init__(self, order: Order, unmerged: Remembered | None = None) -> None:
        self.order, self.unmerged, self.remembered = order, unmerged, unmerged is not None
        self.merged: GeneratedImage | None = None
        self.map: MergedMap | None = None
        self.stage, self.done, self.calls = WAITING, 0, 0
        self.failure: RefusedError | None = None
        self.finished, self.ended, self.version = False, False, 0
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End it after the step that is being drawn, or before it begins."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether it was told to end."""
        return self._cancelled.is_set()

    @property
    def over(self) -> bool:
        """Whether nobody waits for it: all is done, or it was told to end."""
        return self.ended or self.cancelled

    def report(self, stage: str, done: int, calls: int) -> None:
        """Note how far it is.

        Raises:
            CancelledError: it is to end.
        """
        if self.cancelled:
            raise CancelledError
        self.stage, self.done, self.calls = stage, done, calls
        self.version += 1

    def carry_out(self, studio: Studio) -> None:
        """Draw what is wanted; whatever goes wrong is its failure."""
        wanted, tome = self.order.wanted, self.order.tome
        try:
            if self.unmerged is None:
                self.unmerged = studio.unmerged(wanted, self.report)
            self.merged = studio.merged(wanted, tome, self.unmerged.drawn, self.report)
            if self.order.with_map:
                self.map = studio.merged_map(wanted, tome, self.report)
            self.finished = True
        except CancelledError:
            pass
        except RefusedError as failure:
            self.failure = failure
        except ToMeError as error:
            # In words: the error itself holds on to all that was there when it was raised, tensors too.
            self.failure = RefusedError("failed", detail=str(error))
        except Exception as error:
            if is_out_of_memory(error):
                self.failure = RefusedError("out_of_memory")
            else:
                traceback.print_exc()  # for whoever runs the page, who can report it
                self.failure = RefusedError("broken")
        self.end()

    def end(self) -> None:
        """Nothing changes from here on."""
        self.ended = True
        self.version += 1


class Line:
    """Jobs in the order in which they came, one drawn at a time by one thread of its own.

    That thread draws all pictures: each that computes keeps threads and memory of the mathematical libraries.
    """

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._jobs: deque[Job] = deque()  # the first is being drawn
        self._changed, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, name="drawing", daemon=True)
        self._thread.start()

    def add(self, job: Job) -> None:
        """Have a job drawn when all before it are.

        Raises:
            RefusedError: too many are waiting.
        """
        with self._changed:
            self._drop_cancelled()
            if len(self._jobs) > _MOST_WAITING:
                raise RefusedError("full", waiting=len(self._jobs) - 1)
            self._jobs.append(job)
            self._changed.notify()

    def before(self, job: Job) -> int:
        """How many are drawn before a job begins."""
        with self._changed:
            self._drop_cancelled()
            return self._jobs.index(job) if job in self._jobs else 0

    def close(self) -> None:
        """Cancel all, and wait until the step that is being drawn is done."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.cancel()
            self._changed.notify()
        self._thread.join()

    def _drop_cancelled(self) -> None:
        """Let nobody wait for what nobody waits for; the first is being drawn, and ends after its step."""
        for job in [job for job in self._jobs if job.cancelled and job is not self._jobs[0]]:
            self._jobs.remove(job)
            job.end()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job = self._jobs[0]
            if job.cancelled:
                job.end()
            else:
                job.carry_out(self._studio)
            with self._changed:
                self._jobs.popleft()
