"""Layers with ToMe: their methods run overrides.

A layer with ToMe gets a class made from its own, as in tomesd, with the same name and module. ``forward`` of that
class runs the overrides that the layer holds, and otherwise the original. So hooks of the user run outside and see all
tokens, keywords arrive on every Paddle, ``try``/``finally`` ends a call even after KeyboardInterrupt, and a deep copy
or pickle of a model carries its ToMe. A function of the user in place of ``forward`` runs inside if it was there
before, and around if it came later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import paddle
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.patching.paddle_compat import FALLBACK, convert_while_tracing, require_whole_graph
from ppdiffusers_tome.patching.user_functions import holds, is_same

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.override import Override

# The methods that overrides replace.
_REPLACEABLE = ("forward", "prepare_attention_mask")
# The attribute of a layer that holds its ``ReplacedMethod`` by name.
_REPLACED = "_ppdiffusers_tome"


class ReplacedMethod(NamedTuple):
    """A method of one layer, and the functions that run in its place.

    Attributes:
        function: the user's function inside of the overrides; None for the method of the class.
        overrides: around it, outermost last.
    """

    function: Any = None
    overrides: tuple[Override, ...] = ()


_NOT_REPLACED = ReplacedMethod()
_AROUND = object()  # of a function that belongs around the overrides


def is_overridden(layer: Layer) -> bool:
    """Return whether a layer has ToMe, and a class whose methods run it."""
    return _REPLACED in vars(layer) and hasattr(type(layer), "_plain_class")


def list_overrides(layer: Layer) -> list[Override]:
    """List the overrides of all methods of a layer, outermost first."""
    return [override for replaced in vars(layer).get(_REPLACED, {}).values() for override in replaced.overrides[::-1]]


def walk_overrides(model: Layer) -> Iterator[Override]:
    """Yield the overrides of all layers of a model or part."""
    for layer in model.sublayers(include_self=True):
        yield from list_overrides(layer)


def list_user_functions(layer: Layer) -> list[Any]:
    """List the user's functions around and inside of a layer's overrides."""
    return [each for each in (vars(layer).get("forward"), find_user_function(layer)) if each is not None]


def find_user_function(layer: Layer, method: str = "forward") -> Any:
    """Return the user's function inside of a layer's overrides, or None."""
    return _find_replaced(layer, method).function


def _find_plain_class(layer: Layer) -> Any:
    """Return the class of a layer without ToMe."""
    return vars(type(layer)).get("_plain_class", type(layer))


def restore_class(layer: Layer) -> None:
    """Restore a layer's class once no override is left, and no user's function around."""
    methods = vars(layer).get(_REPLACED)
    if methods is None or list_overrides(layer):
        return
    for name in methods.keys() & vars(layer).keys():
        if getattr(vars(layer)[name], "__func__", None) is vars(type(layer)).get(name, layer):
            del vars(layer)[name]  # Paddle's tracing puts back what it found, past ``__setattr__``
    if not methods.keys().isdisjoint(vars(layer)):
        return  # a function around may call ours
    functions = {name: replaced.function for name, replaced in methods.items() if replaced.function is not None}
    del vars(layer)[_REPLACED]
    vars(layer).update(functions)
    if _find_plain_class(layer) is not type(layer):  # other code may have given it another class
        layer.__class__ = _find_plain_class(layer)


def add_override(layer: Layer, override: Override) -> None:
    """Store an override on a layer, around what is there."""
    method = override.method
    if not is_overridden(layer):
        layer.__class__ = _class_with_overrides(_find_plain_class(layer))
    methods = vars(layer).setdefault(_REPLACED, {})
    replaced = methods.get(method) or ReplacedMethod(vars(layer).pop(method, None))
    methods[method] = replaced._replace(overrides=(*replaced.overrides, override))


def remove_override(layer: Layer, override: Override) -> None:
    """Remove an override from a layer, which the last one restores."""
    overrides = _find_replaced(layer, override.method).overrides
    if override in overrides:
        _replace(layer, override.method, overrides=tuple(each for each in overrides if each is not override))
        restore_class(layer)


def _find_replaced(layer: Layer, method: str) -> ReplacedMethod:
    return vars(layer).get(_REPLACED, {}).get(method, _NOT_REPLACED)


def _replace(layer: Layer, method: str, **changes: Any) -> None:
    """Change the function or overrides of a layer's method."""
    vars(layer)[_REPLACED][method] = _find_replaced(layer, method)._replace(**changes)


# One for each class, as ``to_static`` and pickle compare classes and functions.
@cache
def _class_with_overrides(cls: Any) -> type:
    """Return the subclass whose methods run overrides."""
    methods = {name: _run_overrides(cls, name) for name in _REPLACEABLE if hasattr(cls, name)}
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}

    def set_attribute(layer: Layer, name: str, value: Any) -> None:
        if name not in methods:
            cls.__setattr__(layer, name, value)
            return
        inside = _choose_inside(layer, name, value, MethodType(methods[name], layer), getattr(cls, name))
        if inside is _AROUND:
            cls.__setattr__(layer, name, value)
            return
        vars(layer).pop(name, None)
        if inside is not find_user_function(layer, name):
            _replace(layer, name, function=inside)
        restore_class(layer)

    def delete_attribute(layer: Layer, name: str) -> None:
        if name not in vars(layer) and find_user_function(layer, name) is not None:
            _replace(layer, name, function=None)
        else:
            cls.__delattr__(layer, name)
        restore_class(layer)

    def describe(layer: Layer) -> str:  # as ``print(model)`` shows it
        return ", ".join(filter(None, [cls.extra_repr(layer), *map(repr, list_overrides(layer))]))

    return _hide_methods(cls, methods)(cls.__name__, (cls,), {
        **names, **methods, "_plain_class": cls, "__setattr__": set_attribute, "__delattr__": delete_attribute,
        "__reduce_ex__": _reduce, "extra_repr": describe,
    })  # fmt: skip


def _run_overrides(cls: type, name: str) -> Callable[..., Any]:
    """Return the method of a class that runs a layer's overrides."""

    @paddle.jit.not_to_static
    def method(layer: Layer, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**FALLBACK)
        # Of a class derived from this one, whose layers got ToMe again, the overrides run outside.
        is_own = getattr(type(layer), "_plain_class", None) is cls
        run, overrides = _find_replaced(layer, name) if is_own else _NOT_REPLACED
        if run is None:
            run = getattr(cls, name).__get__(layer, cls)
        if not paddle.in_dynamic_mode():
            run = convert_while_tracing(run)
        if overrides:
            require_whole_graph(vars(layer).get(name))
        for override in overrides:
            run = partial(override, run)
        return run(*args, **kwargs)

    marked: Any = method  # whose attributes the types of one Paddle know, and of another not
    marked.__name__, marked.__doc__ = name, getattr(cls, name).__doc__
    marked.__signature__ = inspect.signature(getattr(cls, name))
    return marked


def _hide_methods(cls: Any, methods: dict[str, Any]) -> Any:
    """Return the metaclass with which a class shows the methods of the original class.

    ``type(model).forward``, which caches over steps read and replace, is the original; a layer finds the new one.
    """
    originals: dict[str, Any] = {}  # the functions of the class that somebody replaced

    class PlainMethods(type(cls)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:  # of a class derived from ours, too
            found = super().__getattribute__(name)
            return getattr(cls, name) if name in methods and found is methods[name] else found

        def __setattr__(self, name: str, value: Any) -> None:
            if vars(self).get("_plain_class") is not cls:  # a derived class
                super().__setattr__(name, value)
                return
            if name in methods and value is methods[name]:  # ours, found in the ``__dict__``, as mock.patch does
                value = originals.pop(name, getattr(cls, name))
            elif name in methods:
                originals.setdefault(name, getattr(cls, name))
            setattr(cls, name, value)

        def __delattr__(self, name: str) -> None:
            if vars(self).get("_plain_class") is cls:
                delattr(cls, name)
            else:
                super().__delattr__(name)

    return PlainMethods


def _choose_inside(layer: Layer, name: str, function: Any, ours: MethodType, method: Any) -> Any:
    """Return what is inside of the overrides once a function is set, or ``_AROUND``.

    A hook, a cache, or Paddle where it traced, puts back what it found when it came. If that is our method, it came
    after ToMe, and goes. If it is the class's ``method``, or held by the function inside, it came before, and all
    others go with it. A new function around these, in place of an earlier hook, is inside; any other is around.
    """
    inside, plain = find_user_function(layer, name), MethodType(method, layer)
    if is_same(function, ours):
        return inside
    if _find_replaced(layer, name) is _NOT_REPLACED:
        return _AROUND
    if is_same(function, plain):
        return None
    if inside is not None and holds(inside, function):
        return function
    calls_ours = holds(function, ours) or any(is_same(each, ours) for each in vars(layer).values())
    calls_inside = any(holds(function, each) for each in (plain, method, inside) if each is not None)
    return function if calls_inside and not calls_ours else _AROUND


def _reduce(layer: Layer, protocol: Any) -> tuple[Any, ...]:
    cls = _find_plain_class(layer)
    if cls is type(layer):  # derived from one with ToMe
        return object.__reduce_ex__(layer, protocol)  # type: ignore[return-value]
    bases = (base for base in cls.__mro__ if base is not object)  # which has no state of its own to drop
    get_state = next((vars(base)["__getstate__"] for base in bases if "__getstate__" in vars(base)), vars)
    return _create, (cls,), get_state(layer)


def _create(cls: type) -> Any:
    """Create an empty layer; pickle requires a function of a module."""
    return object.__new__(_class_with_overrides(cls))
