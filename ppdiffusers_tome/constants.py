"""Numbers that never change, as tensors: copied to the device once, not in every call of a denoiser."""

from __future__ import annotations

import numpy as np
import paddle

# By identity of the array, which is kept with its tensor so that no other array can have it.
_KEPT: dict[tuple[int, str], tuple[np.ndarray, paddle.Tensor]] = {}
_MOST = 1024


def constant(array: np.ndarray) -> paddle.Tensor:
    """``array`` as a tensor on the current device; the same tensor for the same array, so nobody may write to it.

    A program that is being recorded gets the numbers themselves.

    Args:
        array: one that is kept and asked for again, and never changed.
    """
    if not paddle.in_dynamic_mode():
        return paddle.to_tensor(array)
    key = (id(array), paddle.get_device())
    kept = _KEPT.get(key)
    if kept is None:
        if len(_KEPT) >= _MOST:
            _KEPT.clear()
        kept = _KEPT[key] = (array, paddle.to_tensor(array))
    return kept[1]
