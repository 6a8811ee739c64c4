"""The calls of layers that a backward pass runs again.

With gradient checkpointing, such a layer belongs to the call in which it first ran, and runs outside its denoiser,
maybe in another thread, after other calls at other sizes. Paddle's ``recompute`` gets a state where layers first run,
here the calls of that moment (``custom_state_manager``). Before their second run it gets the present state and sets
the first one; afterwards it sets back the present one. Paddle 2.6 has no such state, Paddle 3 one for a process.
"""

import itertools
import threading
from typing import Any

from paddle.distributed.fleet import recompute as _recompute

from ppdiffusers_tome.patching.call_stack import CALL_STACK, StackEntry

_MANAGER: Any = getattr(_recompute, "custom_state_manager", None)
HAS_STATE = _MANAGER is not None and _MANAGER.custom_get_state_func is None
# Each state has a number, which tells the setting that ends a second run from those that begin one.
_numbers = itertools.count(1)


class _SecondRuns(threading.local):
    last_state = 0  # the number of the state that Paddle asked for last
    end_states: tuple[int, ...] = ()  # the numbers of those that end the running second runs, innermost last


_SECOND_RUNS = _SecondRuns()


def is_recomputing() -> bool:
    """Return whether a backward pass runs layers again in this thread."""
    return bool(_SECOND_RUNS.end_states)


def _get_state(*_: Any) -> tuple[int, tuple[StackEntry, ...]]:
    _SECOND_RUNS.last_state = next(_numbers)
    return _SECOND_RUNS.last_state, CALL_STACK.entries


def _set_state(state: tuple[int, tuple[StackEntry, ...]]) -> None:
    number, entries = state
    for entry in entries:
        entry.call.state.require_applied()
    if _SECOND_RUNS.end_states[-1:] == (number,):
        _SECOND_RUNS.end_states = _SECOND_RUNS.end_states[:-1]
    else:
        _SECOND_RUNS.end_states += (_SECOND_RUNS.last_state,)  # Paddle asked for it just before
    CALL_STACK.entries = entries


if HAS_STATE:
    _MANAGER.set_custom_get_state_func(_get_state)
    _MANAGER.set_custom_set_state_func(_set_state)
