"""Tensors taken out of nested arguments and outputs, and put back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import paddle

from ppdiffusers_tome.errors import UncompilableError


@dataclass(frozen=True)
class Structure:
    """A nested value without its tensors.

    Attributes:
        kind: the type of the value, as ``1 == True``; None for a tensor.
        content: a tensor's number; a constant; or the structures in a list, tuple or mapping.
        keys: of a mapping.
    """

    kind: type | None
    content: Any
    keys: tuple[Any, ...] = ()


def take_tensors(value: Any, tensors: list[Any]) -> Structure:
    """Append the tensors of a nested value to a list; return what remains.

    Raises:
        UncompilableError: the value holds an object that is neither a tensor, number, text nor None.
    """
    if isinstance(value, (paddle.Tensor, paddle.pir.Value)):
        tensors.append(value)
        return Structure(None, len(tensors) - 1)
    if isinstance(value, (type(None), bool, int, float, str)):
        return Structure(type(value), value)
    if isinstance(value, Mapping):
        items = tuple(take_tensors(each, tensors) for each in value.values())
        return Structure(type(value), items, tuple(value))
    if isinstance(value, (list, tuple)):
        return Structure(type(value), tuple(take_tensors(each, tensors) for each in value))
    raise UncompilableError(f"it gets or returns a {type(value).__name__}")


def put_tensors(structure: Structure, tensors: Sequence[Any]) -> Any:
    """Return the nested value of a structure with these tensors."""
    kind, content = structure.kind, structure.content
    if kind is None:
        return tensors[content]
    if not isinstance(content, tuple):
        return content
    items = [put_tensors(each, tensors) for each in content]
    if not issubclass(kind, Mapping):
        return kind(items)  # type: ignore[call-arg]
    pairs = dict(zip(structure.keys, items, strict=True))
    return pairs if kind is dict else kind(**pairs)  # such as a UNet2DConditionOutput
