"""The calls of layers that a backward pass runs again, in gradient checkpointing.

Such a layer belongs to the call in which it first ran, and runs outside its denoiser, maybe in another thread, after
other calls at other sizes. Paddle's ``recompute`` asks for a state where layers first run, and hands it back around
their second run (``custom_state_manager``): here the frames of that moment. Paddle 2.6 has no such state.
"""

from __future__ import annotations

from typing import Any

from paddle.distributed.fleet import recompute as _recompute

from ppdiffusers_tome.patching.call_stack import CALL_STACK

_MANAGER: Any = getattr(_recompute, "custom_state_manager", None)
HAS_STATE = _MANAGER is not None


def _keep_frames() -> None:
    """Give Paddle the functions for its one state, around others'."""
    others = {"get": _MANAGER.custom_get_state_func, "set": _MANAGER.custom_set_state_func}

    def get_state(*_: Any) -> list[Any]:
        state = [CALL_STACK.frames, *([] if others["get"] is None else [others["get"]()])]
        CALL_STACK.last_state = id(state)  # which Paddle keeps
        return state

    def set_state(state: list[Any]) -> None:
        frames, *other = state
        if other and others["set"] is not None:
            others["set"](*other)  # first, as it may raise
        for frame in frames:
            frame.call.state.require_applied()
        if CALL_STACK.returns[-1:] == [id(state)]:
            CALL_STACK.returns.pop()
        else:
            CALL_STACK.returns.append(CALL_STACK.last_state)  # Paddle asked for it just before
        CALL_STACK.frames = frames

    # Paddle's own refuse a second function, and so whoever comes after this.
    def set_custom_get_state_func(custom_get_state_func: Any) -> None:
        others["get"] = custom_get_state_func

    def set_custom_set_state_func(custom_set_state_func: Any) -> None:
        others["set"] = custom_set_state_func

    _MANAGER.custom_get_state_func, _MANAGER.custom_set_state_func = get_state, set_state
    _MANAGER.set_custom_get_state_func = set_custom_get_state_func
    _MANAGER.set_custom_set_state_func = set_custom_set_state_func


if HAS_STATE:
    _keep_frames()
