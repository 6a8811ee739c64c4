"""The calls of denoisers during gradient checkpointing.

A layer that a backward pass runs again belongs to the call in which it first ran. It runs outside its denoiser, maybe
in another thread, after other calls at other sizes. Paddle's ``recompute`` creates an object for each stretch that it
runs twice, which exists from the first run to the last. The call is stored on that object, and so lives no longer than
its graph. No argument refers to it, only a local variable of Paddle's functions, so this module reads Python's frames.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from paddle.distributed.fleet import recompute as _recompute

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.calls import DenoiserCall

_FOLDER = str(Path(_recompute.__file__).parent)
# Functions of Paddle that run a stretch, and the variable of its object: reentrant, then not.
_FIRST_RUN = {"forward": "ctx", "_recompute_without_reentrant": "storage"}
_SECOND_RUN = {"backward": "ctx", "unpack": "storage"}
_NAME = "_ppdiffusers_tome"


def store_call(owner: Hashable, call: DenoiserCall) -> None:
    """Store a call on every checkpointed stretch that now runs first."""
    for stretch in _list_stretches(_FIRST_RUN):
        calls = vars(stretch).setdefault(_NAME, {}).setdefault(owner, [])
        if call not in calls:
            calls.append(call)
            call.stretches.add(id(stretch))


def find_stored_call(owner: Hashable, *, next_one: bool = False) -> DenoiserCall | None:
    """Return the stored call if a backward pass runs the caller again.

    ``next_one`` is True at the beginning of a call: a stretch may contain several calls, which run in the same order.
    """
    for stretch in _list_stretches(_SECOND_RUN):
        calls = vars(stretch).get(_NAME, {}).get(owner)
        if calls:
            if next_one:
                calls.append(calls.pop(0))
            calls[-1].stretches.discard(id(stretch))
            return calls[-1]
    return None


def is_second_run() -> bool:
    """Return whether a backward pass runs the caller again."""
    return any(True for _ in _list_stretches(_SECOND_RUN))


def _list_stretches(variables: dict[str, str]) -> Iterator[Any]:
    """Yield the objects of the running stretches, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        # The name first: access to a frame's variables creates a dictionary, which Python keeps.
        if name in variables and frame.f_code.co_filename.startswith(_FOLDER):
            stretch = frame.f_locals.get(variables[name])
            if hasattr(stretch, "__dict__"):
                yield stretch
        frame = frame.f_back
