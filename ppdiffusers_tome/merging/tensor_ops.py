"""Tensor operations that Paddle lacks, or has only in a slower form."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import paddle
from paddle import in_dynamic_mode

HALF = (paddle.float16, paddle.bfloat16)


def disable_autocast() -> AbstractContextManager[None]:
    """Switch off ``paddle.amp.auto_cast``, which rounds every product, in a ``with`` block."""
    if hasattr(paddle, "is_autocast_enabled"):
        is_enabled = paddle.is_autocast_enabled()
    else:  # Paddle 2.6
        tracer = paddle.framework._dygraph_tracer()
        is_enabled = tracer is not None and tracer._amp_level != paddle.base.core.AmpLevel.O0
    return paddle.amp.auto_cast(enable=False) if is_enabled else nullcontext()  # entering the former takes 50 us


def scatter_rows(
    updates: paddle.Tensor, index: paddle.Tensor, like: paddle.Tensor, *, add: bool = False
) -> paddle.Tensor:
    """Write ``updates[i]`` to row ``index[i]``, or add them there.

    Returns:
        As many rows as ``like``. Every row must be written at least once, without ``add`` exactly once.
    """
    shape = [like.shape[0] if like.shape[0] >= 0 else paddle.shape(like)[0], *updates.shape[1:]]
    if not in_dynamic_mode():
        return paddle.scatter(paddle.zeros(shape, dtype=updates.dtype), index, updates, overwrite=not add)
    # In place, as that takes one buffer and not two. Paddle's own kernels set the rows that they add to, here all, to
    # zero first; a plugin's may not.
    create = paddle.empty if paddle.get_device().startswith(("cpu", "gpu")) else paddle.zeros
    return paddle.scatter_(create(shape, dtype=updates.dtype), index, updates, overwrite=not add)
