"""Layers by path and class."""

from functools import lru_cache
from typing import Any

from paddle.nn import Layer


def find_layer(layer: Layer, path: str) -> Any:
    """Return the sublayer at a dotted path, "" for itself, or None."""
    found: Any = layer
    for name in filter(None, path.split(".")):
        found = getattr(found, name, None)
    return found


def is_a(value: object, *class_names: str) -> bool:
    """Return whether an object's classes have one of these names."""
    return not list_class_names(type(value)).isdisjoint(class_names)  # type: ignore[arg-type]


# Mypy takes classes for unhashable, so calls of this need a comment for it.
@lru_cache(maxsize=1024)
def list_class_names(layer_class: type) -> frozenset[str]:
    """List the names of a class and of those that it inherits from."""
    return frozenset(cls.__name__ for cls in layer_class.__mro__)
