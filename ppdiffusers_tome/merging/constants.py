"""Constant arrays as tensors, copied to the device once."""

from __future__ import annotations

import weakref

import numpy as np
import paddle


class Constants:
    """The constants of one denoiser with ToMe, freed with it.

    Paddle 3.3 loses a few bytes at every ``to_tensor`` of an array, so they are made once even where that is cheap.
    """

    def __init__(self) -> None:
        # By identity of the array. Its weak reference tells a later array that has the same id.
        self._kept: dict[tuple[int, str], tuple[weakref.ref[np.ndarray], paddle.Tensor]] = {}

    def __call__(self, array: np.ndarray) -> paddle.Tensor:
        """Return an array as a tensor on the current device.

        The same array is the same tensor, so nobody may write to either. The tensor is kept as long as the array, which
        a cache of the caller bounds. A program that is traced gets the numbers themselves.
        """
        if not paddle.in_dynamic_mode():
            return paddle.to_tensor(array)
        key = (id(array), paddle.get_device())
        kept = self._kept.get(key)
        if kept is None or kept[0]() is not array:
            # Threads may share this, so the dictionary is replaced and never changes while another thread reads it.
            in_use = {key: entry for key, entry in self._kept.items() if entry[0]() is not None}
            kept = weakref.ref(array), paddle.to_tensor(array)
            self._kept = {**in_use, key: kept}
        return kept[1]
