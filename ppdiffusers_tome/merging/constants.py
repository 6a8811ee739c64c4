"""Numbers that never change, as tensors: copied to the device once, not in every call of a denoiser."""

from __future__ import annotations

import numpy as np
import paddle

_MOST = 1024  # a denoiser at one size takes about ten


class Constants:
    """The constants of one attachment; they are freed with it.

    Paddle 3.3 loses a few bytes at every ``to_tensor`` of an array, so they are made once even where that is cheap.
    """

    def __init__(self) -> None:
        # By identity of the array, which is kept with its tensor so that no other array can have it.
        self._kept: dict[tuple[int, str], tuple[np.ndarray, paddle.Tensor]] = {}

    def __call__(self, array: np.ndarray) -> paddle.Tensor:
        """``array`` as a tensor on the current device; the same tensor for the same array, so nobody may write to it.

        A program that is being recorded gets the numbers themselves.

        Args:
            array: one that is kept and asked for again, and never changed.
        """
        if not paddle.in_dynamic_mode():
            return paddle.to_tensor(array)
        key = (id(array), paddle.get_device())
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            kept = self._kept[key] = (array, paddle.to_tensor(array))
        return kept[1]
