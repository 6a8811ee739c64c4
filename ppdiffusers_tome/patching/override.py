"""Overrides, which run in place of a layer's method.

A layer with ToMe has an attribute ``forward`` of its own, as a hook has: a function bound to the layer that runs the
layer's overrides around the method of its class, looked up at each call, or around the function that stood there. Its
class stays. So a user's hooks run outside and see all tokens, a cache that replaces the method of a class runs inside,
and a deep copy of a model carries its ToMe.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import MethodType
from typing import Any, ClassVar

import paddle
from paddle.jit.dy2static.program_translator import SymbolicStaticFunction
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.patching.paddle_compat import FALLBACK, convert_while_tracing, require_untraced
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# What an override runs in place of: the method, or the override inside.
Original = Callable[..., Any]
# The attribute of a layer that holds its slots, by the name of their method.
SLOTS = "_ppdiffusers_tome"


class Override:
    """The function in place of a layer's method in its denoiser's calls.

    A subclass defines ``run``, which gets the running call, the original and the arguments; that of a denoiser begins
    the call in ``__call__``. Where no call runs, the original does. Overrides are copied with their layer.

    Attributes:
        method_name: of the method, ``forward`` but for masks.
        runs_in: which call of the ``Frame`` around the layer ``run`` gets: the denoiser's ``call``, ``block`` or
            ``point``.
        state: of the denoiser.
        layer: the layer.
    """

    method_name: ClassVar[str] = "forward"
    runs_in: ClassVar[str] = "call"
    # True if this moves to a layer that wraps its own, as a LoRA wraps ``to_k``.
    follows_wrappers: ClassVar[bool] = False

    def __init__(self, state: DenoiserState, layer: Layer) -> None:
        self.state, self.layer = state, layer

    def __call__(self, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        for frame in reversed(CALL_STACK.frames):
            if frame.call.state is self.state:
                if paddle.in_dynamic_mode() != frame.call.is_eager:
                    raise ToMeValueError(
                        f"paddle.jit.to_static traces a layer inside of {type(frame.call.denoiser).__name__}, and its "
                        "tokens are matched outside of that program; trace the whole model, or remove_tome"
                    )
                call = getattr(frame, self.runs_in)
                return original(*args, **kwargs) if call is None else self.run(call, original, *args, **kwargs)
        self.note_outside()
        return original(*args, **kwargs)

    def run(self, call: Any, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the method."""
        raise NotImplementedError

    def note_outside(self) -> None:
        """Note that the layer runs outside of a call of its denoiser."""

    def put(self) -> None:
        """Put this on its layer, around what is there."""
        attributes, name = vars(self.layer), self.method_name
        slots = attributes.setdefault(SLOTS, {}).setdefault(name, [])
        method = slots[-1].method if slots else None
        # A hook of ppdiffusers keeps the method that it calls in an attribute, so it stays around the slot; around any
        # other function a second slot is made.
        if not any(type(each) is MethodType and each == method for each in attributes.values()):
            cls: Any = type(self.layer)
            slots.append(_Slot(MethodType(_make_method(cls, name, len(slots)), self.layer), attributes.get(name)))
            attributes[name] = slots[-1].method
        slots[-1].overrides += (self,)

    def take_off(self) -> None:
        """Take this off its layer; the last one restores the layer's method."""
        for slot in vars(self.layer).get(SLOTS, {}).get(self.method_name, ()):
            slot.overrides = tuple(each for each in slot.overrides if each is not self)
        restore_functions(self.layer)

    def follow(self, layer: Layer) -> None:
        """Move this to the layer that replaced its own, under ``CHANGE_LOCK``."""
        wraps = any(inner is self.layer for inner in layer.sublayers())
        # Where the new layer wraps this one's and calls it, an override of a whole attention stays.
        if self.layer is not layer and hasattr(layer, self.method_name) and (not wraps or self.follows_wrappers):
            self.take_off()
            self.layer = layer
            self.put()


@dataclass(eq=False)
class _Slot:
    """The slot of a layer's method, where its overrides run.

    A layer has a second slot for a method where other code replaced the first: after ``layer.forward = function``,
    which calls what it found there, a second ``apply_tome`` runs around the function.

    Attributes:
        method: runs the overrides; an attribute of the layer.
        inside: the function that stood there; None for the method of the class.
        overrides: around it, outermost last.
    """

    method: MethodType
    inside: Any
    overrides: tuple[Override, ...] = ()


def list_overrides(layer: Layer) -> list[Override]:
    """List the overrides of all methods of a layer, outermost first."""
    slots = (slot for slots in vars(layer).get(SLOTS, {}).values() for slot in reversed(slots))
    return [override for slot in slots for override in reversed(slot.overrides)]


def walk_overrides(model: Layer) -> Iterator[Override]:
    """Yield the overrides of all layers of a model or part."""
    for layer in model.sublayers(include_self=True):
        yield from list_overrides(layer)


def list_functions(layer: Layer) -> list[Any]:
    """List the functions in place of a layer's ``forward``, ToMe's own included."""
    functions = [slot.inside for slot in vars(layer).get(SLOTS, {}).get("forward", ())]
    return [each for each in (vars(layer).get("forward"), *functions) if each is not None]


def find_inner_forward(layer: Layer) -> Any:
    """Return the ``forward`` inside of a layer's overrides; None: the class's."""
    slots = vars(layer).get(SLOTS, {}).get("forward")
    return slots[0].inside if slots else vars(layer).get("forward")


def replace_inner_forward(layer: Layer, found: MethodType | None, function: MethodType | None) -> None:
    """Replace the ``forward`` inside of a layer's overrides.

    Args:
        layer: with overrides or without.
        found: the only function that is replaced; None for the method of the class.
        function: to run instead; None for the method of the class.
    """
    attributes, slots = vars(layer), vars(layer).get(SLOTS, {}).get("forward")
    if slots:
        if slots[0].inside == found:
            slots[0].inside = function
    elif attributes.get("forward") == found:
        attributes["forward"] = function
        if function is None:
            del attributes["forward"]


def restore_functions(layer: Layer) -> None:
    """Put back what stood in a layer's slots without overrides."""
    attributes = vars(layer)
    for name, slots in list(attributes.get(SLOTS, {}).items()):
        while slots and not slots[-1].overrides and attributes.get(name) in (None, slots[-1].method):
            attributes[name] = slots.pop().inside
            if attributes[name] is None:
                del attributes[name]
        if not slots:
            del attributes[SLOTS][name]
    if not attributes.get(SLOTS, True):
        del attributes[SLOTS]


# Functions, which ``deepcopy`` shares and binds to the copy, and ``to_static`` accepts. The first slot's own method
# may be called inside of the second, so each has one.
@cache
def _make_method(cls: Any, name: str, number: int) -> Callable[..., Any]:
    """Return the method that runs the overrides of a slot."""

    @paddle.jit.not_to_static
    def method(layer: Layer, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**FALLBACK)
        slots = vars(layer).get(SLOTS, {}).get(name, ())
        # A function that was found before ToMe was removed may still run.
        run, overrides = (slots[number].inside, slots[number].overrides) if number < len(slots) else (None, ())
        if run is None:
            run = getattr(type(layer), name).__get__(layer)
        if not paddle.in_dynamic_mode():
            run = convert_while_tracing(run)
        if overrides and isinstance(vars(layer).get(name), SymbolicStaticFunction):
            require_untraced(layer)  # without ``full_graph``
        for override in overrides:
            run = partial(override, run)
        return run(*args, **kwargs)

    marked: Any = method  # whose attributes the types of one Paddle know, and of another not
    marked.__name__, marked.__doc__ = name, getattr(cls, name).__doc__
    marked.__signature__ = inspect.signature(getattr(cls, name))  # ``to_static`` looks for a first argument ``self``
    return marked
