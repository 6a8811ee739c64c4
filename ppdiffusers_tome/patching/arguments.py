"""The arguments of a layer's call, by position or name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from paddle.nn import Layer

Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]


def find_first_argument(layer: Layer, args: Arguments, kwargs: Keywords) -> Any:
    """Return the first argument of a layer's call, or None."""
    return args[0] if args else kwargs.get(list_parameters(layer)[0])


def replace_first_argument(
    layer: Layer, args: Arguments, kwargs: Keywords, value: Any
) -> tuple[Arguments, dict[str, Any]]:
    """Return the arguments of a layer's call with the first one replaced."""
    if args:
        return (value, *args[1:]), dict(kwargs)
    return args, {**kwargs, list_parameters(layer)[0]: value}


def name_arguments(parameters: Sequence[str], args: Arguments, kwargs: Keywords) -> dict[str, Any]:
    """Return the arguments of a call by name."""
    return {**dict(zip(parameters, args, strict=False)), **kwargs}


def find_arguments(layer: Layer, args: Arguments, kwargs: Keywords, keys: Sequence[int | str]) -> list[Any] | None:
    """Return arguments by position or name; None where one is missing."""
    parameters = list_parameters(layer)
    arguments = name_arguments(parameters, args, kwargs)
    found = [arguments.get(parameters[key] if isinstance(key, int) else key) for key in keys]
    return None if any(value is None for value in found) else found


def list_parameters(layer: Layer) -> list[str]:
    """List the parameters of ``forward``, or of one that gets its ``*args``."""
    layer_class: Any = type(layer)
    return _list_parameters(layer_class, layer_class.forward)


@lru_cache(maxsize=64)
def _list_parameters(layer_class: Any, forward: Callable[..., Any]) -> list[str]:
    others = [base.forward for base in layer_class.__mro__[1:] if "forward" in vars(base)]
    for function in (forward, *others):
        parameters = list(inspect.signature(function).parameters.values())[1:]
        if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
            return [parameter.name for parameter in parameters]
    return ["hidden_states"]  # so named in ppdiffusers, where a function without names replaced that of the class
