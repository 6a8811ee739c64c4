"""Arrays of numpy on the memory of tensors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import paddle


def share_memory(x: paddle.Tensor) -> np.ndarray:
    """Return an array on the memory of a contiguous tensor on the CPU.

    The array keeps the memory alive. Write to it only where nobody else has the tensor.
    """
    x = x.detach()
    # Not ``to_tensor`` and ``numpy()``, which copy, and of which the first loses a hundred bytes a call on Paddle 3.3.
    memory = {
        "data": (x.data_ptr(), False), "shape": tuple(x.shape), "version": 3,
        "typestr": np.dtype(str(x.dtype).rsplit(".", 1)[-1]).str,
    }  # fmt: skip
    return np.asarray(SimpleNamespace(tensor=x, __array_interface__=memory))
