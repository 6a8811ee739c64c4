"""Recognize that memory ran out, and hand back what is no longer used."""

from __future__ import annotations

import gc

_WORDS = (
    "ResourceExhausted", "Out of memory", "out of memory", "bad_alloc", "Cannot allocate memory", "ALLOC_FAILED",
    "MemoryError",
)  # fmt: skip


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is about memory."""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _WORDS)


def free_memory() -> None:
    """Hand back memory that nothing uses any more."""
    import paddle

    gc.collect()
    if paddle.get_device().startswith("gpu"):
        paddle.device.cuda.empty_cache()
