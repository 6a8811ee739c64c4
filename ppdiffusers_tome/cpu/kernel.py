"""Attention and convolutions of float32 tensors on a CPU by onnxruntime's kernels.

Its ``MultiHeadAttention`` keeps the scores of a few queries and keys in the cache, as in FlashAttention-2 (Dao 2023),
and takes heads side by side, as linear layers give them. Its ``Conv`` unfolds a few pixels at a time, where Paddle
unfolds the whole image. They read and write the memory of Paddle's tensors.
"""

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.cpu.process import count_threads
from ppdiffusers_tome.messages import warn_user

_Attribute = int | tuple[int, ...]


def fits_kernel(*tensors: paddle.Tensor | None) -> bool:
    """Return whether the kernels take such tensors here.

    They take float32 on a CPU, with elements and without gradients; None is left out.
    """
    given = [x for x in tensors if x is not None]
    return (
        paddle.in_dynamic_mode()
        and all(x.dtype == paddle.float32 and x.place.is_cpu_place() and 0 not in x.shape for x in given)
        and not (paddle.is_grad_enabled() and any(not x.stop_gradient for x in given))
    )


def find_module(function: Any) -> str:
    """Return the module in which a function was written, or ""."""
    # Its ``__module__`` may be copied from the function that it replaced.
    return getattr(function, "__globals__", {}).get("__name__", "")


def compute_attention(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, heads: int, scale: float
) -> paddle.Tensor | None:
    """Compute attention by the kernel; return None without onnxruntime.

    Args:
        query: ``[batch, tokens, heads * channels]``; it and the others fit the kernel.
        key, value: ``[batch, keys, heads * channels]``; the value may have channels of its own.
        heads: their number.
        scale: of the scores.

    Returns:
        ``[batch, tokens, heads * own channels]``.
    """
    shape = [query.shape[0], query.shape[1], value.shape[2]]
    # The kernel's own scale is 1 / sqrt(channels); the query takes the rest, so that all scales share a session.
    factor = scale * math.sqrt(query.shape[2] / heads)
    query = query if math.isclose(factor, 1) else query * factor
    return _compute("com.microsoft.MultiHeadAttention", (query, key, value), shape, num_heads=heads)


def compute_convolution(
    x: paddle.Tensor, weight: paddle.Tensor, bias: paddle.Tensor | None, *,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> paddle.Tensor | None:  # fmt: skip
    """Compute a convolution by the kernel; return None if it cannot.

    Args:
        x: ``[batch, channels, height, width]``; it and the others fit the kernel.
        weight: ``[output channels, channels / groups, height, width]`` of the kernel.
        bias: ``[output channels]`` or None.
        stride, padding, dilation: of height and width; zeros are padded on both sides.
        groups: of channels.

    Returns:
        ``[batch, output channels, height, width]``.
    """
    sides = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    size = [(side + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for side, kernel, step, pad, gap in sides]
    if min(size) < 1:
        return None  # Paddle says what is wrong
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return _compute(
        "Conv", inputs, [x.shape[0], weight.shape[0], *size],
        strides=tuple(stride), pads=(*padding, *padding), dilations=tuple(dilation), group=groups,
    )  # fmt: skip


def _compute(
    operator: str, inputs: Sequence[paddle.Tensor], shape: list[int], **attributes: _Attribute
) -> paddle.Tensor | None:
    """Compute a tensor of this shape by an operator, or return None."""
    session = _make_session(operator, len(inputs), tuple(attributes.items()), count_threads())
    if session is None:
        return None
    # ``paddle.empty`` takes the default device, which may be a GPU.
    output = paddle._C_ops.empty(shape, paddle.float32, inputs[0].place)
    inputs = [x.contiguous() for x in inputs]  # which live until the kernel has read them
    binding = session.io_binding()
    for number, x in enumerate(inputs):
        binding.bind_input(str(number), "cpu", 0, np.float32, x.shape, x.data_ptr())
    binding.bind_output("output", "cpu", 0, np.float32, output.shape, output.data_ptr())
    session.run_with_iobinding(binding)
    return output


@lru_cache(32)  # each has threads of its own; a pipeline needs about ten
def _make_session(operator: str, num_inputs: int, attributes: tuple[tuple[str, _Attribute], ...], threads: int) -> Any:
    """Return the session that all layers of this kind share, or None."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait would rob Paddle's
        options.enable_cpu_mem_arena = False  # an arena of its own beside Paddle's freed memory
        model = _write_model(operator, [str(number) for number in range(num_inputs)], attributes)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of a broken installation, anything
        _advise(f"{type(error).__name__}: {error}")
        return None


@cache
def _advise(reason: str) -> None:
    warn_user(
        f"onnxruntime cannot compute attention and convolutions ({' '.join(reason.split())[:200]}), so ppdiffusers' "
        "plain attention and Paddle's convolutions run, which are slower and take more memory; pip install "
        "'onnxruntime>=1.20'"
    )


def _write_model(operator: str, inputs: list[str], attributes: tuple[tuple[str, _Attribute], ...]) -> bytes:
    """Write a model of one operator on float32 tensors of any shape."""
    from onnx import TensorProto, helper  # which paddlenlp requires

    domain, _, name = operator.rpartition(".")
    node = helper.make_node(name, inputs, ["output"], domain=domain, **dict(attributes))
    *given, output = (helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in (*inputs, "output"))
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], name, given, [output])
    return helper.make_model(graph, opset_imports=versions, ir_version=8).SerializeToString()
