"""What the page remembers of each person, in memory alone, for as long as the page is open. Knows no gradio."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.play.jobs import Job
from ppdiffusers_tome.tools.play.requests import Wanted

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.play.studio import Remembered

_MOST = 32  # people at once; of whoever was away the longest, and waits for nothing, everything is forgotten


@dataclass
class Desk:
    """Of one person, with one open page.

    Attributes:
        photo: the picture that was handed over.
        job: the last order.
    """

    photo: Image.Image | None = None
    job: Job | None = None

    def unmerged(self, wanted: Wanted) -> Remembered | None:
        """The unmerged picture of the last order, if it is this one."""
        last = None if self.job is None else self.job.unmerged
        return last if last is not None and last.wanted == wanted else None


class Desks:
    """Of everybody, by what a browser calls the session of an open page."""

    def __init__(self) -> None:
        self._desks: OrderedDict[str, Desk] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, session: str) -> Desk:
        """Of a session; a new one where it has none."""
        with self._lock:
            desk = self._desks.setdefault(session, Desk())
            self._desks.move_to_end(session)
            # The line is shorter than this, so there is always somebody who waits for nothing.
            idle = (name for name, each in self._desks.items() if each.job is None or each.job.over)
            oldest = next(idle) if len(self._desks) > _MOST else None
        if oldest is not None:
            self.forget(oldest)
        return desk

    def forget(self, session: str) -> None:
        """Keep nothing of a session, and draw nothing more for it."""
        with self._lock:
            desk = self._desks.pop(session, None)
        if desk is not None and desk.job is not None:
            desk.job.cancel()

    def __len__(self) -> int:
        return len(self._desks)
