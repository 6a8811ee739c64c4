"""Constant arrays as tensors, copied to the device once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import paddle

T = TypeVar("T")
# A field of a dataclass of constants: numpy's array or, as ``Constants`` returns it, a tensor.
Constant: TypeAlias = Any


class Constants:
    """The constants of one denoiser with ToMe, freed with it.

    Paddle 3.3 loses a few bytes at every ``to_tensor`` of an array, so they are made once even where that is cheap.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # by dataclass and device

    def __call__(self, arrays: T) -> T:
        """Return a dataclass with tensors on the current device as its arrays.

        The same object gives the same tensors, so nobody may write to them. They are kept as long as the object, which
        a cache of the caller bounds. A program that is traced gets the numbers themselves.
        """
        kept = self._kept.setdefault(arrays, {}) if paddle.in_dynamic_mode() else {}
        device = paddle.get_device()
        if device not in kept:
            tensors = {}
            for name, value in vars(arrays).items():
                if isinstance(value, np.ndarray):
                    tensors[name] = paddle.to_tensor(value)
            kept[device] = replace(arrays, **tensors)  # type: ignore[type-var]
        return kept[device]
