"""Functions of the user, and the functions that they hold."""

from __future__ import annotations

from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from paddle.nn import Layer

_MAX_HELD = 100  # functions in a list or dictionary in which one is looked for


def holds(function: Any, inner: Any) -> bool:
    """Return whether a function is or holds another, as hooks hold functions."""
    queue, seen = [function], set()
    for each in queue:
        if is_same(each, inner):
            return True
        if id(each) not in seen:
            seen.add(id(each))
            queue += _list_held(each)
    return False


def is_same(one: Any, other: Any) -> bool:
    """Compare functions; a bound method is a new object at each access."""
    return one is other or (type(one) is type(other) is MethodType and one == other)


def _list_held(function: Any) -> list[Any]:
    """List what a function may call, as far as that shows."""
    # By the very type, as an object of the user may run code where it is looked at.
    kind: Any = type(function)
    if kind is FunctionType:
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        return [*cells, *defaults, vars(function).get("__wrapped__")]
    if kind is partial:
        return [function.func, *function.args, *function.keywords.values(), vars(function).get("__wrapped__")]
    if kind in (list, tuple, dict):
        return list(function.values() if kind is dict else function) if len(function) <= _MAX_HELD else []
    owner = function.__self__ if kind is MethodType else function
    has_attributes = type(owner).__dictoffset__ != 0 and not issubclass(type(owner), Layer | type)
    attributes = object.__getattribute__(owner, "__dict__") if callable(function) and has_attributes else {}
    return [*attributes.values(), *([function.__func__] if kind is MethodType else [])]
