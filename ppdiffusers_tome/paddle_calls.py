"""What Paddle's forward hooks can tell, by version: keywords of a call, and whether a call still runs.

Paddle 3 hands hooks the keywords (``with_kwargs``, 3.0) and calls some of them also where a call fails
(``always_call``, 3.3). Paddle 2.6 does neither, and ``always_call`` does not see KeyboardInterrupt. What is missing is
read off Python's own stack, which is right whatever was raised and whoever still holds the traceback.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

import paddle

# What Paddle keeps beside its two dictionaries of hooks, by hook id, in the versions that have it.
_FLAGS = (
    "_forward_pre_hooks_with_kwargs_flag", "_forward_post_hooks_with_kwargs_flag", "_forward_post_hooks_always_called",
)  # fmt: skip


def _offers(register: Callable[..., Any], option: str) -> dict[str, bool]:
    return {option: True} if option in inspect.signature(register).parameters else {}


_WITH_KEYWORDS = _offers(paddle.nn.Layer.register_forward_pre_hook, "with_kwargs")
_ALWAYS = _offers(paddle.nn.Layer.register_forward_post_hook, "always_call")


def before(layer: Any, hook: Callable[..., Any], *, with_keywords: bool = False) -> None:
    """Have ``hook(layer, inputs)`` called before a layer; ``with_keywords``, see ``keywords_of``."""
    layer.register_forward_pre_hook(hook, **(_WITH_KEYWORDS if with_keywords else {}))


def after(layer: Any, hook: Callable[..., Any], *, always: bool = False) -> None:
    """Have ``hook(layer, inputs, output)`` called after a layer.

    ``always``: also after a failure, then with None for the output; where Paddle cannot, it is not called.
    """
    layer.register_forward_post_hook(hook, **(_ALWAYS if always else {}))


def remove_hooks(layer: Any, is_ours: Callable[[Any], bool]) -> None:
    """Take hooks off a layer, with all that Paddle keeps about them."""
    for hooks in (layer._forward_pre_hooks, layer._forward_post_hooks):
        for hook_id in [hook_id for hook_id, hook in hooks.items() if is_ours(hook)]:
            del hooks[hook_id]
            for flags in _FLAGS:
                getattr(layer, flags, {}).pop(hook_id, None)


def keywords_of(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The keywords of the call before which the caller, a hook registered ``with_keywords``, runs.

    Args:
        given: what Paddle handed to the hook; None where it hands nothing.
    """
    if given is not None:
        return given
    found = sys._getframe(2).f_locals.get("kwargs")
    return found if isinstance(found, dict) else {}


class RunningCall:
    """A layer's call that has begun; made in a hook of the layer, or of one inside it."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        # The function whose frame tells: Paddle's own, which calls hooks and ``forward``, or ``forward`` itself where a
        # user calls that. While a program is recorded it may be neither.
        frame = _frame_of(layer, sys._getframe(1), None)
        self._code: CodeType | None = None if frame is None else frame.f_code

    @property
    def runs(self) -> bool:
        """Whether the call is on this thread's stack."""
        return _frame_of(self._layer, sys._getframe(1), self._code) is not None


def _frame_of(layer: Any, frame: FrameType | None, code: CodeType | None) -> FrameType | None:
    """The innermost frame, from ``frame`` outwards, of a method of ``layer``; of one with that code, if it is given."""
    while frame is not None:
        # The code first: Python makes a dictionary of a frame's variables whenever they are asked for.
        if (code is None or frame.f_code is code) and frame.f_locals.get("self") is layer:
            return frame
        frame = frame.f_back
    return None
