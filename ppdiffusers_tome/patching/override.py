"""Overrides, which run in place of a layer's method.

A layer with ToMe keeps its class and gets a ``forward`` of its own, as a hook does: a function bound to the layer that
runs the overrides around the method of the class, looked up at each call, or around the function that stood there.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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


@dataclass(eq=False, repr=False)
class Override:
    """The function in place of a layer's method in its denoiser's calls.

    A subclass defines ``run``, which gets the running call, the original and the arguments; that of a denoiser begins
    the call in ``__call__``. Where no call runs, the original does. Overrides are copied with their layer.
    """

    method_name: ClassVar[str] = "forward"
    runs_in: ClassVar[str] = "call"  # which call of the ``Frame`` around the layer ``run`` gets
    follows_wrappers: ClassVar[bool] = False  # True: moves to a layer that wraps its own, as a LoRA wraps ``to_k``

    state: DenoiserState
    layer: Layer

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
        slots = attributes.setdefault(SLOTS, {})
        slot = slots.get(name)
        # Other code put a function in place of its method, which none of that code's attributes hold, as hooks do.
        is_lost = slot is not None and not slot.overrides and not _holds(attributes, slot.method)
        if slot is None or is_lost:
            found = attributes.get(name)
            attributes[name] = MethodType(_make_method(type(self.layer), name, found), self.layer)
            slots[name] = Slot(attributes[name], found)
        slots[name].overrides += (self,)

    def take_off(self) -> None:
        """Take this off its layer; the last one restores the layer's method."""
        if (slot := find_slot(self.layer, self.method_name)) is not None:
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
class Slot:
    """The place of a layer's method, where its overrides run."""

    method: MethodType  # runs the overrides; an attribute of the layer
    inside: Any  # the function that stood there; None for the method of the class
    overrides: tuple[Override, ...] = ()  # around that, outermost last


def find_slot(layer: Layer, name: str = "forward") -> Slot | None:
    """Return the slot of a layer's method, or None."""
    slots: dict[str, Slot] = vars(layer).get(SLOTS, {})
    return slots.get(name)


def list_overrides(layer: Layer) -> list[Override]:
    """List the overrides of all methods of a layer, outermost first."""
    return [override for slot in vars(layer).get(SLOTS, {}).values() for override in reversed(slot.overrides)]


def walk_overrides(model: Layer) -> Iterator[Override]:
    """Yield the overrides of all layers of a model or part."""
    for layer in model.sublayers(include_self=True):
        yield from list_overrides(layer)


def list_functions(layer: Layer) -> list[Any]:
    """List the functions in place of a layer's ``forward``, ToMe's own included."""
    slot = find_slot(layer)
    functions = vars(layer).get("forward"), slot and slot.inside
    return [each for each in functions if each is not None]


def find_inner_forward(layer: Layer) -> Any:
    """Return the ``forward`` inside of a layer's overrides; None: the class's."""
    slot = find_slot(layer)
    return slot.inside if slot else vars(layer).get("forward")


def replace_inner_forward(layer: Layer, found: MethodType | None, function: MethodType | None) -> None:
    """Replace a ``forward`` inside of a layer's overrides, if found; None: the class's."""
    if find_inner_forward(layer) != found:
        return
    if slot := find_slot(layer):
        slot.inside = function
    else:
        _set_function(layer, "forward", function)


def restore_functions(layer: Layer) -> None:
    """Put back what stood in a layer's slots without overrides."""
    attributes = vars(layer)
    for name, slot in list(attributes.get(SLOTS, {}).items()):
        if slot.overrides:
            continue
        if attributes.get(name) in (None, slot.method):
            _set_function(layer, name, slot.inside)
            del attributes[SLOTS][name]
        # Else other code put a function in its place, and may put the method back when that goes.
    if not attributes.get(SLOTS, True):
        del attributes[SLOTS]


def _holds(attributes: Mapping[str, Any], method: MethodType) -> bool:
    return any(type(each) is MethodType and each == method for each in attributes.values())


def _set_function(layer: Layer, name: str, function: Any) -> None:
    """Set the function of a layer; None: the method of its class."""
    if function is not None:
        vars(layer)[name] = function
    else:
        vars(layer).pop(name, None)


def _make_method(cls: Any, name: str, found: Any) -> Callable[..., Any]:
    """Make the method that runs the overrides of a slot.

    It is a function, which ``deepcopy`` shares and binds to the copy, and ``to_static`` accepts. A function of the user
    may call it after its slot is gone; then it runs what it found.
    """

    @paddle.jit.not_to_static
    def method(layer: Layer, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**FALLBACK)
        slot = vars(layer).get(SLOTS, {}).get(name)  # without a call, as this runs often
        if slot is not None and slot.method.__func__ is method:
            run, overrides = slot.inside, slot.overrides
        else:
            run, overrides = found, ()
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
