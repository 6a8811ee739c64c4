"""Tensor operations that Paddle lacks, or has only in a slower form."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import paddle

HALF = (paddle.float16, paddle.bfloat16)


def widen(x: paddle.Tensor) -> paddle.Tensor:
    """Cast half precision to float32 and leave other types alone."""
    return x.astype("float32") if x.dtype in HALF else x


def disable_autocast() -> AbstractContextManager[None]:
    """Switch off ``paddle.amp.auto_cast``, which rounds every product, in a ``with`` block."""
    if hasattr(paddle, "is_autocast_enabled"):
        is_enabled = paddle.is_autocast_enabled()
    else:  # Paddle 2.6
        tracer = paddle.framework._dygraph_tracer()
        is_enabled = tracer is not None and tracer._amp_level != paddle.base.core.AmpLevel.O0
    return paddle.amp.auto_cast(enable=False) if is_enabled else nullcontext()  # entering the former takes 50 us


def dim_size(x: paddle.Tensor, axis: int) -> int | paddle.Tensor:
    """Return the length of an axis, int32 ``[]`` where it is dynamic."""
    return x.shape[axis] if x.shape[axis] >= 0 else paddle.shape(x)[axis]


def gather_last_axis(x: paddle.Tensor, index: paddle.Tensor) -> paddle.Tensor:
    """Gather ``[..., n]`` by int64 ``[..., k]`` or ``[...]``, one a row.

    Not ``take_along_axis``, which copies ``x`` and on Paddle 2.6 waits for the device to check the index.
    """
    num_rows = dim_size(x, 0) * math.prod(x.shape[1:-1])
    row_starts = paddle.arange(0, num_rows * x.shape[-1], x.shape[-1], dtype="int64").unsqueeze(-1)
    places = index.reshape([-1, index.shape[-1] if index.ndim == x.ndim else 1]) + row_starts
    return paddle.gather(x.flatten(), places.flatten()).reshape(index.shape)


def scatter_rows(
    updates: paddle.Tensor, index: paddle.Tensor, num_rows: int | paddle.Tensor,
    *, add: bool = False, in_place: bool = False,
) -> paddle.Tensor:  # fmt: skip
    """Write ``updates[i]`` to row ``index[i]``, or add them there.

    Every row must be written at least once, without ``add`` exactly once. ``in_place`` takes one buffer, not two.
    """
    shape = [num_rows, *(dim_size(updates, axis) for axis in range(1, updates.ndim))]
    if in_place:
        # Paddle's own kernels set the rows that they add to, here all, to zero first; a plugin's may not.
        create = paddle.empty if paddle.get_device().startswith(("cpu", "gpu")) else paddle.zeros
        return paddle.scatter_(create(shape, dtype=updates.dtype), index, updates, overwrite=not add)
    return paddle.scatter(paddle.zeros(shape, dtype=updates.dtype), index, updates, overwrite=not add)


def can_write_in_place(x: paddle.Tensor | None = None) -> bool:
    """Return True where neither gradients nor a program are recorded of ``x``."""
    return paddle.in_dynamic_mode() and (x is None or x.stop_gradient or not paddle.is_grad_enabled())
