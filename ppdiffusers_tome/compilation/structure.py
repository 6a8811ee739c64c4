"""Tensors taken out of nested arguments and outputs, and put back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import paddle

from ppdiffusers_tome.errors import UncompilableError
from ppdiffusers_tome.merging.chosen_keys import ChosenKeys
from ppdiffusers_tome.merging.matching import Matching


@dataclass(frozen=True)
class Structure:
    """A nested value without its tensors."""

    kind: type | None  # The type of the value, which tells True from 1; None for a tensor.
    content: Any  # The number of a tensor, a constant, or the structures in a list, tuple, mapping or reduction.
    keys: tuple[Any, ...] = ()  # The keys of a mapping, or the names of a reduction's fields.


def take_tensors(value: Any, tensors: list[Any]) -> Structure:
    """Append a nested value's tensors to a list; return what remains.

    Raises:
        UncompilableError: the value holds an object that is neither a tensor, number, text, reduction nor None.
    """
    if isinstance(value, (paddle.Tensor, paddle.pir.Value)):
        is_symbol = isinstance(value, paddle.pir.Value)  # Several objects may be the same symbol.
        numbers = (number for number, each in enumerate(tensors) if is_symbol and value.is_same(each))
        number = next(numbers, len(tensors))
        tensors[number:] = tensors[number:] or [value]
        return Structure(None, number)
    if isinstance(value, (type(None), bool, int, float, str)):
        return Structure(type(value), value)
    if isinstance(value, (list, tuple)):
        return Structure(type(value), tuple(take_tensors(each, tensors) for each in value))
    if not isinstance(value, (Mapping, Matching, ChosenKeys)):
        raise UncompilableError(f"it gets or returns a {type(value).__name__}")
    fields = dict(value if isinstance(value, Mapping) else vars(value))
    return Structure(type(value), tuple(take_tensors(each, tensors) for each in fields.values()), tuple(fields))


def put_tensors(structure: Structure, tensors: Sequence[Any]) -> Any:
    """Return the nested value of a structure with these tensors."""
    kind, content = structure.kind, structure.content
    if kind is None:
        return tensors[content]
    if not isinstance(content, tuple):
        return content
    items = [put_tensors(each, tensors) for each in content]
    if issubclass(kind, (list, tuple)):
        return kind(items)
    pairs = dict(zip(structure.keys, items, strict=True))
    return pairs if kind is dict else kind(**pairs)  # A reduction, or a mapping such as UNet2DConditionOutput.
