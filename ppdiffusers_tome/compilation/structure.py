"""Tensors taken out of nested arguments and outputs, and put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import paddle

from ppdiffusers_tome.errors import UncompilableError

_CONSTANTS = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class Leaf:
    """A tensor's number; or a constant with its type, as ``1 == True``."""

    number: int | None = None
    constant: Any = None
    kind: type | None = None


@dataclass(frozen=True)
class Branch:
    """A list, tuple or mapping of leaves and branches."""

    kind: type
    items: tuple[Any, ...]
    keys: tuple[Any, ...] | None = None


Structure = Leaf | Branch


def take_tensors(value: Any, tensors: list[Any]) -> Structure:
    """Append the tensors of a nested value to a list; return what remains.

    Raises:
        UncompilableError: the value holds an object that is neither a tensor, number, text nor None.
    """
    if isinstance(value, (paddle.Tensor, paddle.pir.Value)):
        tensors.append(value)
        return Leaf(number=len(tensors) - 1)
    if isinstance(value, _CONSTANTS):
        return Leaf(constant=value, kind=type(value))
    if isinstance(value, Mapping):
        return Branch(type(value), tuple(take_tensors(each, tensors) for each in value.values()), tuple(value))
    if isinstance(value, (list, tuple)):
        return Branch(type(value), tuple(take_tensors(each, tensors) for each in value))
    raise UncompilableError(f"it gets or returns a {type(value).__name__}")


def put_tensors(structure: Structure, tensors: Sequence[Any]) -> Any:
    """Return the nested value of a structure with these tensors."""
    if isinstance(structure, Leaf):
        return structure.constant if structure.number is None else tensors[structure.number]
    items = [put_tensors(each, tensors) for each in structure.items]
    if structure.keys is None:
        return structure.kind(items)
    pairs = dict(zip(structure.keys, items, strict=True))
    return pairs if structure.kind is dict else structure.kind(**pairs)  # such as a UNet2DConditionOutput
