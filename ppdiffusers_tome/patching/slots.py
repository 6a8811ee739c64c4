"""The places of layers' methods, in which overrides run.

A layer with ToMe keeps its class and gets a ``forward`` of its own, as a hook does: a function bound to the layer that
runs the overrides around the method of the class, looked up at each call, or around the function that stood there.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import paddle
from paddle.jit.dy2static.program_translator import SymbolicStaticFunction
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.patching.paddle_compat import FALLBACK, convert_while_tracing, require_untraced

# The attribute of a layer that holds its slots, by the name of their method.
SLOTS = "_ppdiffusers_tome"


@dataclass(eq=False)
class Slot:
    """The place of a layer's method, where its overrides run."""

    method: MethodType  # runs the overrides; an attribute of the layer
    inner: Any  # the function that stood there; None for the method of the class
    overrides: tuple[Any, ...] = ()  # around that, outermost last


def find_slot(layer: Layer, name: str = "forward") -> Slot | None:
    """Return the slot of a layer's method, or None."""
    slots: dict[str, Slot] = vars(layer).get(SLOTS, {})
    return slots.get(name)


def open_slot(layer: Layer, name: str) -> Slot:
    """Return the slot of a layer's method; make one where none is."""
    attributes, slot = vars(layer), find_slot(layer, name)
    # Other code may hold a slot's method on the layer, as hooks do.
    is_held = slot is not None and slot.method in (each for each in attributes.values() if type(each) is MethodType)
    if slot is None or not (slot.overrides or is_held):
        inner = attributes.get(name)
        slot = Slot(MethodType(_make_method(type(layer), name, inner), layer), inner)
        attributes.setdefault(SLOTS, {})[name] = slot
        attributes[name] = slot.method
    return slot


def close_slots(layer: Layer) -> None:
    """Put back what stood in a layer's slots without overrides."""
    attributes = vars(layer)
    for name, slot in list(attributes.get(SLOTS, {}).items()):
        # Other code that put a function in its place may put the method back when that goes.
        if not slot.overrides and attributes.get(name) in (None, slot.method):
            _set_function(layer, name, slot.inner)
            del attributes[SLOTS][name]
    if not attributes.get(SLOTS, True):
        del attributes[SLOTS]


def list_functions(layer: Layer) -> list[Any]:
    """List the functions in place of a layer's ``forward``, ToMe's own included."""
    slot = find_slot(layer)
    functions = vars(layer).get("forward"), slot and slot.inner
    return [each for each in functions if each is not None]


def find_inner_forward(layer: Layer) -> Any:
    """Return the ``forward`` inside of a layer's overrides; None: the class's."""
    slot = find_slot(layer)
    return slot.inner if slot else vars(layer).get("forward")


def replace_inner_forward(layer: Layer, old: MethodType | None, new: MethodType | None) -> None:
    """Replace an ``old`` forward inside of a layer's overrides; None: the class's."""
    if find_inner_forward(layer) != old:
        return
    if slot := find_slot(layer):
        slot.inner = new
    else:
        _set_function(layer, "forward", new)


def _set_function(layer: Layer, name: str, function: Any) -> None:
    """Set the function of a layer; None: the method of its class."""
    if function is not None:
        vars(layer)[name] = function
    else:
        vars(layer).pop(name, None)


def _make_method(cls: Any, name: str, inner: Any) -> Callable[..., Any]:
    """Make the method that runs the overrides of a slot.

    It is a function, which ``deepcopy`` shares and binds to the copy, and ``to_static`` accepts. A function of the user
    may call it after its slot is gone; then it runs ``inner`` alone.
    """

    @paddle.jit.not_to_static
    def method(layer: Layer, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**FALLBACK)
        slot = vars(layer).get(SLOTS, {}).get(name)  # without a call, as this runs often
        if slot is not None and slot.method.__func__ is method:
            run, overrides = slot.inner, slot.overrides
        else:
            run, overrides = inner, ()
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
