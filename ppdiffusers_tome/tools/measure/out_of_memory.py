"""Recognize that memory ran out."""

from __future__ import annotations

_WORDS = (
    "ResourceExhausted", "Out of memory", "out of memory", "bad_alloc", "Cannot allocate memory", "ALLOC_FAILED",
    "MemoryError",
)  # fmt: skip


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is about memory."""
    return isinstance(error, MemoryError) or any(word in str(error) for word in _WORDS)
