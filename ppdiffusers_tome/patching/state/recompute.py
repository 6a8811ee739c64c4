"""Gradient checkpointing: what a backward pass runs again belongs to the call in which it ran first.

It runs outside its denoiser, maybe in another thread, after other calls at other sizes. Paddle's ``recompute`` keeps
one object of each stretch that it runs twice, from its first run to the last; the call is kept there, and so no longer
than its graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from paddle.distributed.fleet import recompute as _recompute

from ppdiffusers_tome.patching.paddle_compat import frames
from ppdiffusers_tome.patching.state.calls import Call

_FOLDER = str(Path(_recompute.__file__).parent)
# Functions of Paddle that run a stretch, and the variable that holds its object: reentrant, and otherwise.
_FIRST = {"forward": "ctx", "_recompute_without_reentrant": "storage"}
_AGAIN = {"backward": "ctx", "unpack": "storage"}
_NAME = "_ppdiffusers_tome"


def note(owner: Hashable, call: Call) -> None:
    """The caller runs within ``call``; so does every stretch around it that is run for the first time."""
    for stretch in _stretches(_FIRST):
        calls = vars(stretch).setdefault(_NAME, {}).setdefault(owner, [])
        if call not in calls:
            calls.append(call)


def noted(owner: Hashable, *, next_one: bool = False) -> Call | None:
    """The call that the caller belongs to if it is run again; None where it is not.

    ``next_one``: a stretch may hold several calls of a denoiser, and this is the beginning of one, in the same order.
    """
    for stretch in _stretches(_AGAIN):
        calls = vars(stretch).get(_NAME, {}).get(owner)
        if calls:
            if next_one:
                calls.append(calls.pop(0))
            return calls[-1]
    return None


def _stretches(variables: dict[str, str]) -> Iterator[Any]:
    """The objects of the stretches that run now, from the innermost outwards."""
    for frame in frames():
        name = frame.f_code.co_name
        if name in variables and frame.f_code.co_filename.startswith(_FOLDER):
            stretch = frame.f_locals.get(variables[name])
            if hasattr(stretch, "__dict__"):
                yield stretch
