"""Attention and convolutions by onnxruntime's kernels: the baseline of speeds on a CPU.

``MultiHeadAttention`` keeps the scores of a few queries and keys in the cache, as in FlashAttention-2
(Dao 2023), and ``Conv`` unfolds a few pixels at a time. Both give Paddle's numbers to rounding, on its memory.
"""

import math
import os
from collections.abc import Sequence
from functools import lru_cache
from types import MethodType
from typing import Any

import numpy as np
import paddle
from paddle.nn import Layer
from ppdiffusers.models.attention_processor import Attention

from ppdiffusers_tome.compilation import slices
from ppdiffusers_tome.patching.slots import replace_inner_forward

_Attribute = int | tuple[int, ...]


def use_kernels(model: Layer) -> None:
    """Let kernels compute a model's plain attention and convolutions.

    It is for good, and no gradients pass. Other processors stay.
    """
    for layer in model.sublayers(include_self=True):
        if slices.is_plain(getattr(layer, "processor", None)):
            layer.set_processor(AttnProcessor())
        if type(layer).forward in slices.CONVOLUTIONS:
            replace_inner_forward(layer, None, MethodType(_convolve, layer))


class AttnProcessor(slices.SlicedProcessor):
    """Compute plain attention by a kernel.

    By its name ToMe knows that a mask is for the keys of its tokens.
    """

    def attend(
        self, attn: Any, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, mask: paddle.Tensor | None
    ) -> paddle.Tensor:
        """Compute attention ``[batch, tokens, channels]`` from projections of that kind."""
        if (
            not _are_accepted(query, key, value, mask)
            or query.shape[0] != key.shape[0]  # a text for several images is broadcast
            or getattr(attn.get_attention_scores, "__func__", None) is not Attention.get_attention_scores
            or (mask is not None and mask.shape != [query.shape[0], attn.heads, 1, key.shape[1]])  # differs by query
        ):
            return super().attend(attn, query, key, value, mask)
        shape = [query.shape[0], query.shape[1], value.shape[2]]
        if mask is not None:
            query, key = _append_mask_channel(query, key, mask, attn.scale)
        # The kernel's own scale is 1 / sqrt(channels); the query takes the rest, so that all scales share a session.
        factor = attn.scale * math.sqrt(query.shape[2] / attn.heads)
        query = query if math.isclose(factor, 1) else query * factor
        return _compute("com.microsoft.MultiHeadAttention", (query, key, value), shape, num_heads=attn.heads)


def _append_mask_channel(
    query: paddle.Tensor, key: paddle.Tensor, mask: paddle.Tensor, scale: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Append a channel to each head whose product is the mask.

    Given a mask ``[batch, heads, 1, keys]``, which is added to products times ``scale``, the kernel would compute all
    scores at once.
    """
    heads = mask.shape[1]
    # The lowest float32 would become infinite.
    bias = paddle.clip(mask, -1e30, 1e30).transpose([0, 3, 1, 2]) / scale
    query, key = (x.reshape([*x.shape[:2], heads, -1]) for x in (query, key))
    query = paddle.concat([query, paddle.ones_like(query[..., :1])], axis=-1)
    return query.flatten(2), paddle.concat([key, bias], axis=-1).flatten(2)


def _convolve(layer: Any, x: paddle.Tensor, *args: Any, **kwargs: Any) -> paddle.Tensor:
    """Compute a convolution in place of its layer's ``forward``."""
    padding = [layer._padding] * 2 if isinstance(layer._padding, int) else layer._padding
    if (
        not _are_accepted(x, layer.weight, layer.bias)
        or getattr(layer, "lora_layer", None) is not None
        or (layer._padding_mode, layer._data_format) != ("zeros", "NCHW")
        or len(padding) != 2 or not all(isinstance(each, int) for each in padding)  # a word, or of each side
    ):  # fmt: skip
        return type(layer).forward(layer, x, *args, **kwargs)
    sides = zip(x.shape[2:], layer.weight.shape[2:], layer._stride, padding, layer._dilation, strict=True)
    size = [(side + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for side, kernel, step, pad, gap in sides]
    inputs = (x, layer.weight) if layer.bias is None else (x, layer.weight, layer.bias)
    return _compute(
        "Conv", inputs, [x.shape[0], layer.weight.shape[0], *size],
        strides=tuple(layer._stride), pads=(*padding, *padding), dilations=tuple(layer._dilation), group=layer._groups,
    )  # fmt: skip


def _are_accepted(*tensors: paddle.Tensor | None) -> bool:
    """Return whether the kernels take such tensors; None is left out."""
    given = [x for x in tensors if x is not None]
    return all(x.dtype == paddle.float32 and x.place.is_cpu_place() and 0 not in x.shape for x in given)


def _compute(
    operator: str, inputs: Sequence[paddle.Tensor], shape: list[int], **attributes: _Attribute
) -> paddle.Tensor:
    """Compute a tensor of this shape by an operator."""
    # ``paddle.empty`` takes the default device, which may be a GPU.
    output = paddle._C_ops.empty(shape, paddle.float32, inputs[0].place)
    inputs = [x.contiguous() for x in inputs]  # which live until the kernel has read them
    session = _make_session(operator, len(inputs), tuple(attributes.items()), int(os.environ["OMP_NUM_THREADS"]))
    binding = session.io_binding()
    for number, x in enumerate(inputs):
        binding.bind_input(str(number), "cpu", 0, np.float32, x.shape, x.data_ptr())
    binding.bind_output("output", "cpu", 0, np.float32, output.shape, output.data_ptr())
    session.run_with_iobinding(binding)
    return output


@lru_cache(32)  # each has threads of its own; a pipeline needs about ten
def _make_session(operator: str, num_inputs: int, attributes: tuple[tuple[str, _Attribute], ...], threads: int) -> Any:
    """Make the session of an operator on float32 tensors of any shape."""
    from onnx import TensorProto, helper
    from onnxruntime import InferenceSession, SessionOptions

    domain, _, name = operator.rpartition(".")
    inputs = [str(number) for number in range(num_inputs)]
    node = helper.make_node(name, inputs, ["output"], domain=domain, **dict(attributes))
    *given, output = (helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in (*inputs, "output"))
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], name, given, [output]), opset_imports=versions, ir_version=8)
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait would rob Paddle's
    options.enable_cpu_mem_arena = False  # an arena of its own beside Paddle's freed memory
    return InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
