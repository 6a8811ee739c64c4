"""Arrays of numpy on the memory of tensors."""

from types import SimpleNamespace

import numpy as np
import paddle


def share_memory(*tensors: paddle.Tensor) -> list[np.ndarray]:
    """Return arrays on the memory of tensors on the CPU, which they keep alive.

    Write to one only where nobody else has its tensor.
    """
    arrays = []
    for x in tensors:
        x = x.detach().contiguous()
        # ``numpy()`` would copy.
        memory = {
            "data": (x.data_ptr(), False), "shape": tuple(x.shape), "version": 3,
            "typestr": np.dtype(str(x.dtype).rsplit(".", 1)[-1]).str,
        }  # fmt: skip
        arrays.append(np.asarray(SimpleNamespace(tensor=x, __array_interface__=memory)))
    return arrays
