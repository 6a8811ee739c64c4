"""Attention of float32 tensors on a CPU by onnxruntime's kernel.

Its ``MultiHeadAttention`` keeps the scores of a few queries and keys in the cache, as in FlashAttention-2 (Dao 2023),
and takes heads side by side, as linear layers give them. It reads and writes the memory of Paddle's tensors.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.messages import warn_user

OLDEST = "1.20"  # onnxruntime 1.19 was the first with the kernel
_FLOAT, _WHOLE = 1, 2  # types of attributes in onnx.proto


def compute_attention(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, heads: int, scale: float
) -> paddle.Tensor | None:
    """Compute attention without gradients; return None where that fails.

    Args:
        query: ``[batch, tokens, heads * channels]``, float32 on a CPU, as the others.
        key: ``[batch, keys, heads * channels]``.
        value: ``[batch, keys, heads * own channels]``.
        heads: their number.
        scale: of the scores.

    Returns:
        ``[batch, tokens, heads * own channels]``.
    """
    session = _make_session(heads, float(scale), _count_threads())
    if session is None:
        return None
    output = paddle.empty([query.shape[0], query.shape[1], value.shape[2]], dtype="float32")
    inputs = [x.contiguous() for x in (query, key, value)]  # which live until the kernel has read them
    binding = session.io_binding()
    for name, x in zip(("query", "key", "value"), inputs, strict=True):
        binding.bind_input(name, "cpu", 0, np.float32, x.shape, x.data_ptr())
    binding.bind_output("output", "cpu", 0, np.float32, output.shape, output.data_ptr())
    try:
        session.run_with_iobinding(binding)
    except Exception as error:
        _advise(str(error))
        return None
    return output


def has_kernel() -> bool:
    """Return whether onnxruntime works here; if not, warn with the remedy once."""
    return _make_session(1, 1.0, 1) is not None


@cache
def _make_session(heads: int, scale: float, threads: int) -> Any:
    """Return the session that all layers of these heads share, or None."""
    try:
        import onnxruntime

        if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < tuple(map(int, OLDEST.split("."))):
            raise ImportError(f"{onnxruntime.__version__} is older than {OLDEST}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait would rob Paddle's
        options.enable_cpu_mem_arena = False  # an arena of its own beside Paddle's freed memory
        return onnxruntime.InferenceSession(_write_model(heads, scale), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a broken installation, anything
        _advise(f"{type(error).__name__}: {error}")
        return None


@cache
def _advise(reason: str) -> None:
    warn_user(
        f"onnxruntime cannot compute attention ({' '.join(reason.split())[:200]}), so ppdiffusers' plain attention "
        f"runs, which is slower and takes more memory; pip install 'onnxruntime>={OLDEST}'"
    )


def _count_threads() -> int:
    """Return the number of Paddle's threads, which ``prepare_cpu`` or the user set."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else 1


def _write_model(heads: int, scale: float) -> bytes:
    """Write a model of one layer of attention, as onnx.proto describes it."""
    node = b"".join([
        *(_field(1, name) for name in ("query", "key", "value")), _field(2, "output"),
        _field(4, "MultiHeadAttention"), _field(7, "com.microsoft"),
        _field(5, _field(1, "num_heads") + _field(3, heads) + _field(20, _WHOLE)),
        _field(5, _field(1, "scale") + _field(2, scale) + _field(20, _FLOAT)),
    ])  # fmt: skip
    of_floats = _field(2, _field(1, _field(1, 1)))  # a tensor of float32, of any shape
    graph = b"".join([
        _field(1, node), _field(2, "attention"),
        *(_field(11, _field(1, name) + of_floats) for name in ("query", "key", "value")),
        _field(12, _field(1, "output") + of_floats),
    ])  # fmt: skip
    versions = [("", 17), ("com.microsoft", 1)]  # of operators
    return b"".join([
        _field(1, 8), _field(7, graph), *(_field(8, _field(1, name) + _field(2, number)) for name, number in versions)
    ])  # fmt: skip


def _field(number: int, value: int | float | str | bytes) -> bytes:
    """Write a field of a protocol buffer: its number and kind, and its value."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    """Write a whole number, seven bits a byte, the lowest first."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)
