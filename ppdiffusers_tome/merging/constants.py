"""Constant arrays as tensors, copied to the device once."""

from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import paddle

T = TypeVar("T")
# A field of a dataclass of constants: numpy's array or, as ``load_constants`` returns it, a tensor.
Constant: TypeAlias = Any
_loaded: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # by dataclass and device


def load_constants(arrays: T) -> T:
    """Return a dataclass with tensors on the current device as its arrays.

    The same object gives the same tensors, so nobody may write to them. They are kept as long as the object, which a
    cache of the caller bounds: Paddle 3.3 loses a few bytes at every ``to_tensor`` of an array. A program that is
    traced gets the numbers themselves.
    """
    loaded = _loaded.setdefault(arrays, {}) if paddle.in_dynamic_mode() else {}
    device = paddle.get_device()
    if device not in loaded:
        tensors = {name: paddle.to_tensor(x) for name, x in vars(arrays).items() if isinstance(x, np.ndarray)}
        loaded[device] = replace(arrays, **tensors)  # type: ignore[type-var]
    return loaded[device]
