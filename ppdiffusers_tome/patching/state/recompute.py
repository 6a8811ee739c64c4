"""The calls of denoisers during gradient checkpointing.

A layer that a backward pass runs again belongs to the call in which it first ran. It runs outside its denoiser, maybe
in another thread, after other calls at other sizes. Paddle's ``recompute`` asks for a state before a stretch of layers
first runs, keeps it as long as the graph, and hands it back where they run again (``custom_state_manager``): here a
``Stretch``. Paddle 2.6 has no such state, and there a layer that runs again belongs to the last call that recorded
gradients.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from paddle.distributed.fleet import recompute as _recompute

from ppdiffusers_tome.patching.state.call_stack import CALL_STACK, CHANGES

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

_MANAGER: Any = getattr(_recompute, "custom_state_manager", None)
HAS_STATE = _MANAGER is not None
_STRETCHES: weakref.WeakSet[Stretch] = weakref.WeakSet()


class Stretch:
    """The calls around layers that a backward pass runs again.

    Attributes:
        frames: the calls in which the layers run first, innermost last.
        ran_again: True once the layers run again.
    """

    def __init__(self) -> None:
        self.frames, self.ran_again = CALL_STACK.frames, False


def is_awaited(state: DenoiserState) -> bool:
    """Return whether a backward pass is to run a denoiser's layers, under ``CHANGES``."""
    return any(frame.call.state is state for stretch in _STRETCHES if not stretch.ran_again for frame in stretch.frames)


def _begin_stretch() -> Stretch:
    stretch = Stretch()
    with CHANGES:
        _STRETCHES.add(stretch)
    CALL_STACK.last_stretch = weakref.ref(stretch)
    return stretch


def _enter_stretch(stretch: Stretch) -> None:
    """Begin the second run of a stretch, or return to what runs around it."""
    returns, last = CALL_STACK.returns, CALL_STACK.last_stretch
    if returns and returns[-1] is stretch:
        returns.pop()
    else:
        # Paddle asked just before for the calls to return to.
        returns.append(None if last is None else last())
        stretch.ran_again = True
    CALL_STACK.frames = stretch.frames


def _keep_stretches() -> None:
    """Give Paddle the functions for its one state, around others'."""
    others = {"get": _MANAGER.custom_get_state_func, "set": _MANAGER.custom_set_state_func}

    def get_state(*_: Any) -> tuple[Any, ...]:
        return (_begin_stretch(),) if others["get"] is None else (_begin_stretch(), others["get"]())

    def set_state(state: tuple[Any, ...]) -> None:
        _enter_stretch(state[0])
        if len(state) > 1 and others["set"] is not None:
            others["set"](state[1])

    # Paddle's own refuse a second function, and so whoever comes after this.
    def set_custom_get_state_func(custom_get_state_func: Any) -> None:
        others["get"] = custom_get_state_func

    def set_custom_set_state_func(custom_set_state_func: Any) -> None:
        others["set"] = custom_set_state_func

    _MANAGER.custom_get_state_func, _MANAGER.custom_set_state_func = get_state, set_state
    _MANAGER.set_custom_get_state_func = set_custom_get_state_func
    _MANAGER.set_custom_set_state_func = set_custom_set_state_func


if HAS_STATE:
    _keep_stretches()
