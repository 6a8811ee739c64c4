"""Objects that run in place of one method of one layer.

ToMe stores nothing else on a model. An override is stored in the layer's own ``__dict__``, where Python finds it before
the method of the class. So hooks of the user run outside of it and see all tokens, it gets keywords on every Paddle,
``try``/``finally`` ends a call even after KeyboardInterrupt, and a deep copy or a pickle of a model carries its ToMe.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.patching.paddle_compat import (
    EVERY_FRAME,
    convert_while_tracing,
    exclude_from_conversion,
    is_called_by_jit,
    is_called_by_to_static,
)
from ppdiffusers_tome.patching.state.call_stack import CHANGES, next_call_number

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.attachment import Attachment

# The methods that overrides replace.
METHODS = ("forward", "prepare_attention_mask", "get_attention_scores")


@exclude_from_conversion
class MethodOverride:
    """The replacement of a layer's method ``NAME``; to add one, subclass it or ``ForwardOverride``.

    A subclass defines ``run``, which gets the running call of the denoiser and the arguments, and calls
    ``call_original``. ``put`` stores an object on its layer, ``remove_overrides`` takes it off. The attributes of an
    object are copied and pickled with the model. Outside of a call of the denoiser only the original runs.

    Attributes:
        previous: the former value under that name in the layer's ``__dict__``, such as a user's function, or None.
        removed_at: the number of the first call of a denoiser in which this does nothing; None while it is in use.
    """

    NAME: ClassVar[str]
    # True if this moves to a layer that wraps its own, as a LoRA wraps ``to_k``.
    follows_wrappers: ClassVar[bool] = False

    def __init__(self, attachment: Attachment, layer: Layer) -> None:
        self.attachment, self.layer = attachment, layer
        self.previous: Any = None
        self.removed_at: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # No call of a copy needs an override that was removed.
        return {**vars(self), "removed_at": None if self.removed_at is None else 0}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**EVERY_FRAME)
        call = self.attachment.current_call()
        # A call that began before this was removed ends with it.
        if call is None or (self.removed_at is not None and call.number >= self.removed_at):
            return self.call_original(*args, **kwargs)
        return self.run(call, *args, **kwargs)

    def run(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the method."""
        raise NotImplementedError

    def call_original(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method that this replaces."""
        return convert_while_tracing(self._original())(*args, **kwargs)

    def _original(self) -> Any:
        if self.previous is not None:
            return self.previous
        # Not a property: Paddle's tracer of bytecode would bind the method to this object.
        return getattr(type(self.layer), self.NAME).__get__(self.layer)

    def put(self) -> None:
        """Store this on the layer, inside of any cache over steps."""
        with CHANGES:
            mapping, key = vars(self.layer), self.NAME
            # Inside of a cache over steps, its results have all tokens.
            references = _step_caches(self.layer) if key == "forward" else []
            if references:
                mapping = vars(references[0])
                key = "original_forward" if mapping.get("original_forward") is not None else key
            self.previous = mapping.get(key)
            mapping[key] = self

    def take_off(self) -> None:
        """Put back what the layer had before."""
        with CHANGES:
            for mapping, key in list(_places(self.layer, self.NAME)):
                if mapping.get(key) is not self:
                    continue
                if self.previous is None and mapping is vars(self.layer):
                    del mapping[key]
                elif key == "previous":  # of another override
                    mapping[key] = self.previous
                else:
                    mapping[key] = self._original()  # a cache or Paddle, enabled since, calls it

    def follow(self, layer: Layer) -> None:
        """Move this to the layer that replaced its own in the model."""
        wraps = any(inner is self.layer for inner in layer.sublayers())
        # Where the new layer wraps this one's and calls it, an override of a whole attention stays.
        if self.removed_at is not None or (wraps and not self.follows_wrappers):
            return
        with CHANGES:
            self.take_off()
            self.layer = layer
            MethodOverride.put(self)


class ForwardOverride(MethodOverride):
    """The replacement of a layer's ``forward``.

    ``paddle.jit.to_static(layer)`` accepts only bound methods, so it sees the method of the layer's class in this; its
    tracing calls this object without rewriting it.
    """

    NAME = "forward"

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return MethodType if is_called_by_to_static() else type(self)

    @property
    def __func__(self) -> Any:
        if not is_called_by_jit():
            raise AttributeError("__func__")  # ppdiffusers' Accelerator would call that function in place of this
        return type(self.layer).forward

    @property
    def __self__(self) -> Layer:
        return self.layer

    @property
    def __name__(self) -> str:
        return self.NAME

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.layer).forward.__get__(self.layer))

    def __get__(self, instance: Any, owner: type | None = None) -> ForwardOverride:
        return self  # Paddle 2.6 binds methods while it traces

    def __reduce__(self) -> tuple[Any, tuple[type], dict[str, Any]]:
        return _create, (type(self),), self.__getstate__()


def _create(cls: type) -> Any:
    """Create an empty object; pickle requires a function of a module."""
    return object.__new__(cls)


def remove_overrides(overrides: Sequence[MethodOverride]) -> None:
    """Remove overrides of a model.

    A call that runs in another thread ends with all of them, and one that begins later has none.
    """
    with CHANGES:
        number = next_call_number()
        for override in overrides:
            if override.removed_at is None:
                override.removed_at = number
    for override in reversed(overrides):
        override.attachment.call_when_idle(override.removed_at or number, override.take_off)


def list_overrides(layer: Layer, *, with_removed: bool = False) -> list[MethodOverride]:
    """List the overrides in use of all methods of a layer.

    ``with_removed`` adds those that a call in another thread still needs, or that a foreign wrapper holds.
    """
    with CHANGES:
        places = [place for name in METHODS for place in _places(layer, name)]
        found = {id(mapping[key]): mapping[key] for mapping, key in places}
    return [override for override in found.values() if with_removed or override.removed_at is None]


def list_replacements(layer: Layer) -> list[Any]:
    """List the overrides of ``forward`` and what the innermost one replaced."""
    found = [vars(layer).get("forward")]
    while isinstance(found[-1], MethodOverride):
        found.append(found[-1].previous)
    return [value for value in found if value is not None]


def _places(layer: Layer, name: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the dictionaries and keys of a layer's stored overrides."""
    places = [(vars(layer), name)]
    if name == "forward":
        # Paddle stores there what ``to_static`` replaced; ppdiffusers' hooks store what they call.
        places += [(vars(layer).get("_original_funcs", {}), name)]
        places += [(vars(reference), key) for reference in _step_caches(layer) for key in ("original_forward", name)]
    for mapping, key in places:
        while isinstance(mapping.get(key), MethodOverride):
            yield mapping, key
            mapping, key = vars(mapping[key]), "previous"


def _step_caches(layer: Layer) -> list[Any]:
    """List the function references of ppdiffusers' hooks on a layer."""
    return list(getattr(vars(layer).get("_diffusers_hook"), "_fn_refs", ()))


def reset_step_caches(layer: Layer) -> None:
    """Drop the results in the caches over steps of a layer.

    They are hooks of ppdiffusers, such as Pyramid Attention Broadcast, which return earlier results in some steps.
    """
    for cache in list(getattr(vars(layer).get("_diffusers_hook"), "hooks", {}).values()):
        if getattr(getattr(cache, "state", None), "cache", None) is not None:
            cache.reset_state(layer)
