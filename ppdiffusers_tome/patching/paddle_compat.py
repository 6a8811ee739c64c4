"""What Paddle's forward hooks can tell, by version: keywords of a call, and whether a call still runs.

Paddle 3 hands hooks the keywords (``with_kwargs``, 3.0) and calls some of them also where a call fails
(``always_call``, 3.3). Paddle 2.6 does neither, and ``always_call`` does not see KeyboardInterrupt. What is missing is
read off Python's own stack, which is right whatever was raised and whoever still holds the traceback.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import paddle
from paddle.nn import Layer

# What Paddle keeps beside its two dictionaries of hooks, by hook id, in the versions that have it.
_FLAGS = (
    "_forward_pre_hooks_with_kwargs_flag", "_forward_post_hooks_with_kwargs_flag", "_forward_post_hooks_always_called",
)  # fmt: skip
# Where Paddle calls a layer's hooks and its ``forward``.
_LAYERS = inspect.getfile(paddle.nn.Layer)


def _offers(register: Callable[..., Any], option: str) -> dict[str, bool]:
    return {option: True} if option in inspect.signature(register).parameters else {}


_WITH_KEYWORDS = _offers(paddle.nn.Layer.register_forward_pre_hook, "with_kwargs")
# Whether what is handed by keyword can be seen, and changed.
HOOKS_SEE_KEYWORDS = bool(_WITH_KEYWORDS)
_ALWAYS = _offers(paddle.nn.Layer.register_forward_post_hook, "always_call")


def before(layer: Layer, hook: Callable[..., Any], *, with_keywords: bool = False) -> Any:
    """Have ``hook(layer, inputs)`` called before a layer; ``with_keywords``, see ``keywords_of``.

    A hook with keywords, where Paddle has those, is called ``hook(layer, inputs, keywords)`` and returns both, changed,
    or None.

    Returns:
        Paddle's object whose ``remove()`` takes it off.
    """
    return layer.register_forward_pre_hook(hook, **(_WITH_KEYWORDS if with_keywords else {}))


def after(layer: Layer, hook: Callable[..., Any], *, always: bool = False) -> None:
    """Have ``hook(layer, inputs, output)`` called after a layer.

    ``always``: also after a failure, then with None for the output; where Paddle cannot, it is not called.
    """
    layer.register_forward_post_hook(hook, **(_ALWAYS if always else {}))


def remove_hooks(layer: Layer, is_ours: Callable[[Any], bool]) -> None:
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


def arguments(
    layer: Layer, inputs: tuple, keywords: Mapping[str, Any], wanted: Sequence[int | str]
) -> list[Any] | None:
    """Some arguments of a layer's call, by position or by name, however they are given; None where one is missing."""
    parameters = _parameters(type(layer).forward)
    given = {**dict(zip(parameters, inputs, strict=False)), **keywords}
    names = [parameters[each] if isinstance(each, int) else each for each in wanted]
    return [given[name] for name in names] if all(given.get(name) is not None for name in names) else None


@lru_cache(maxsize=64)
def _parameters(forward: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(forward).parameters)[1:]


class RunningCall:
    """A layer's call that has begun; made in a hook of the layer, or of one inside it.

    Attributes:
        depth: how many calls of the layer there are inside each other, this one included; more than 1 where it is
            called again within its own call.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        # The function whose frames tell: Paddle's own, or ``forward`` where a user calls that or a program is recorded.
        own = next(_frames_of(layer, lambda code: code.co_filename == _LAYERS), None)
        self._code: CodeType | None = None if own is None else own.f_code
        self.depth = max(1, sum(1 for _ in self._frames()))

    @property
    def runs(self) -> bool:
        """Whether the call is on this thread's stack."""
        code, left = self._code, self.depth
        if code is None:
            return sum(1 for _ in self._frames()) >= left
        # A plain loop, as it runs several times in every block.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is code and frame.f_locals.get("self") is self._layer:
                left -= 1
                if not left:
                    return True
            frame = frame.f_back
        return False

    def _frames(self) -> Iterator[FrameType]:
        code = self._code
        if code is None:
            return _frames_of(self._layer, lambda of_frame: of_frame.co_name == "forward")
        return _frames_of(self._layer, lambda of_frame: of_frame is code)


def frames() -> Iterator[FrameType]:
    """The frames of this thread's stack, from the caller's outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames_of(layer: Layer, wanted: Callable[[CodeType], bool]) -> Iterator[FrameType]:
    """The frames of methods of a layer with such code, from the innermost outwards."""
    for frame in frames():
        # The code first: Python makes a dictionary of a frame's variables whenever they are asked for, and keeps it.
        if wanted(frame.f_code) and frame.f_locals.get("self") is layer:
            yield frame
