"""Layers of a model, by path and by class name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paddle.nn import Layer


def find_layer(layer: Layer, path: str) -> Any:
    """Return the sublayer at a dotted path, "" for itself, or None."""
    found: Any = layer
    for name in filter(None, path.split(".")):
        found = getattr(found, name, None)
    return found


def is_a(layer: object, *class_names: str) -> bool:
    """Return whether a layer's classes have one of these names."""
    return any(cls.__name__ in class_names for cls in type(layer).__mro__)
