"""The calls of denoisers during gradient checkpointing.

A layer that a backward pass runs again belongs to the call in which it first ran. It runs outside its denoiser, maybe
in another thread, after other calls at other sizes. Paddle's ``recompute`` asks for a state where a stretch of layers
runs first, keeps it as long as the graph, and hands it back where they run again (``custom_state_manager``): here a
``Stretch``. Paddle 2.6 has no such state, and there a layer that runs again belongs to the last call that recorded
gradients.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from paddle.distributed.fleet import recompute as _recompute

from ppdiffusers_tome.patching.state.call_stack import CALL_STACK, CHANGES

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.calls import DenoiserCall
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

_MANAGER: Any = getattr(_recompute, "custom_state_manager", None)
_STRETCHES: weakref.WeakSet[Stretch] = weakref.WeakSet()


class Stretch:
    """Layers that a backward pass runs again.

    Attributes:
        around: the calls of denoisers in which they run, innermost last.
        within: the calls that began in those around since, in order; Paddle does not say where the stretch ends.
        left: of those within, the calls that have not run again, while the stretch does.
        is_over: True once they ran again.
    """

    def __init__(self) -> None:
        self.around = tuple(CALL_STACK.calls)
        self.within: list[DenoiserCall] = []
        self.left: list[DenoiserCall] = []
        self.is_over, self.thread = False, threading.get_ident()


def note_call(call: DenoiserCall) -> None:
    """Note a new call in this thread's stretches that run first."""
    if _MANAGER is None and call.in_graph:
        call.state.last_graph_call = call
    with CHANGES:
        for stretch in _STRETCHES:
            is_around = tuple(CALL_STACK.calls[: len(stretch.around)]) == stretch.around
            if stretch.thread == threading.get_ident() and is_around and not stretch.is_over:
                stretch.within.append(call)


def find_call_again(state: DenoiserState) -> DenoiserCall | None:
    """Return the call of a denoiser that a backward pass begins again."""
    left = CALL_STACK.again[-1][1].left
    call = next((call for call in left if call.state is state), None)
    if call is not None:
        left.remove(call)
    return call


def is_needed(state: DenoiserState) -> bool:
    """Return whether a backward pass needs a denoiser again, under ``CHANGES``."""
    calls = (call for stretch in _STRETCHES if not stretch.is_over for call in (*stretch.around, *stretch.within))
    return any(call.state is state for call in calls)


def _begin_stretch() -> Stretch:
    stretch = Stretch()
    with CHANGES:
        _STRETCHES.add(stretch)
    CALL_STACK.newest = weakref.ref(stretch)
    return stretch


def _switch(stretch: Stretch) -> None:
    """Begin the second run of a stretch, or end one.

    Paddle asks for the state before it (``newest``), sets that of the stretch, and afterwards the one from before.
    """
    CALL_STACK.calls = list(stretch.around)
    if CALL_STACK.again and CALL_STACK.again[-1][0] is stretch:
        CALL_STACK.again.pop()
        return
    stretch.is_over, stretch.left = True, list(stretch.within)
    CALL_STACK.again.append((None if CALL_STACK.newest is None else CALL_STACK.newest(), stretch))


def _keep_stretches() -> None:
    """Give Paddle the functions for its one state, around others'."""
    get_other, set_other = _MANAGER.custom_get_state_func, _MANAGER.custom_set_state_func

    def get_state(*_: Any) -> tuple[Stretch, Any]:
        return _begin_stretch(), None if get_other is None else get_other()

    def set_state(state: tuple[Stretch, Any]) -> None:
        _switch(state[0])
        if set_other is not None:
            set_other(state[1])

    _MANAGER.custom_get_state_func, _MANAGER.custom_set_state_func = get_state, set_state


if _MANAGER is not None:
    _keep_stretches()
