"""The memory of a call, computed from the shapes of a traced program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import paddle
import paddle.nn.functional as F

_VIEWS = ("flatten", "reshape", "share_data", "squeeze", "unsqueeze")  # of their first input; they take no memory
_FUSED_ATTENTION = ("scaled_dot_product_attention", "scaled_dot_product_attention_")
_Values = list[tuple[Any, tuple[int, ...], str]]  # what tells tensors apart, their shape and type


def compute_peaks(call: Callable[[], Any], *, itemsize: int = 4, unfolds: bool = False) -> tuple[int, int]:
    """Compute the peaks of a call with plain and with fused attention.

    They are bytes, without those of weights. Nothing is run. A tensor is held from the operator that makes it to the
    last that reads it; Python holds a few longer. With fused attention (xformers, flash) no scores are held.

    Args:
        call: builds a model and calls it on ``make_data``; it may return the number of operators that build it, whose
            results are weights.
        itemsize: bytes of a floating-point number.
        unfolds: True on a CPU, where a convolution unfolds its input, one image at a time.
    """
    num_building, operators = _trace(call)
    scores = {(math.prod(shape), shape[-2:]) for name, xs, _ in operators if name == "softmax" for _, shape, _ in xs}
    made, freed, unfolded = np.zeros([3, len(operators) + 2, 2], np.int64)
    sizes, owner, last_use = dict[Any, Any](), dict[Any, Any](), dict[Any, int]()
    for number, (name, inputs, outputs) in enumerate(operators):
        for key, shape, dtype in outputs:
            if name.startswith(_VIEWS):
                owner[key] = owner.get(inputs[0][0], inputs[0][0])
            elif number >= num_building and name != "builtin.parameter":
                size = math.prod(shape) * (itemsize if "f" in dtype else 8 if "64" in dtype else 4)
                sizes[key] = np.array([size, 0 if (math.prod(shape), shape[-2:]) in scores else size])
                made[number] += sizes[key]
        if unfolds and name == "conv2d" and math.prod(inputs[1][1][2:]) > 1:
            unfolded[number] = itemsize * math.prod(inputs[1][1][1:]) * math.prod(outputs[0][1][2:])
        # The operator that reads a list follows the one that makes it.
        last_use.update((owner.get(key, key), number + (name == "builtin.combine")) for key, *_ in inputs + outputs)
    for key, number in last_use.items():
        freed[number + 1] += sizes.get(key, 0)
    plain, fused = (np.cumsum(made - freed, axis=0) + unfolded).max(axis=0)
    return int(plain), int(fused)


def read_tensor_bytes(which: str) -> int:
    """Return the ``current`` or ``peak`` bytes of Paddle's tensors.

    Paddle 2.6 cannot reset the peak.
    """
    device, _, index = paddle.get_device().partition(":")
    kind = "device" if device == "gpu" else "host"
    return int(getattr(paddle.base.core, f"{kind}_memory_stat_{which}_value")("Allocated", int(index or 0)))


def build(model_class: Any, **config: Any) -> Any:
    """Build a model in the traced program, where weights take no memory."""

    def keep_buffer(layer: Any, name: str, value: Any, **_: Any) -> None:
        layer.__dict__[name] = value

    with mock.patch.object(paddle.nn.Layer, "register_buffer", keep_buffer):  # Paddle refuses values of a program
        model = model_class(**config)
    model.eval()
    return model


def make_data(*shape: int, dtype: str = "float32") -> Any:
    """Make an input in the program that is being traced."""
    return paddle.static.data(paddle.utils.unique_name.generate("input"), list(shape), dtype)


def count_operators() -> int:
    """Count the operators that were traced until now."""
    return len(paddle.static.default_main_program().global_block().ops)


def _trace(call: Callable[[], Any]) -> tuple[int, list[tuple[str, _Values, _Values]]]:
    """Return a call's result and its operators with inputs and outputs.

    The input of a view is the first.
    """
    program, attention = paddle.static.Program(), dict.fromkeys(_FUSED_ATTENTION, _plain_attention)
    paddle.enable_static()
    try:
        with (
            paddle.static.program_guard(program, paddle.static.Program()), paddle.no_grad(),
            mock.patch.dict(vars(F), attention), warnings.catch_warnings(),
        ):  # fmt: skip
            warnings.simplefilter("ignore")  # Paddle says that a program does nothing in place
            returned = call() or 0
    finally:
        paddle.disable_static()
    return returned, list(_list_operators(program.global_block()))


def _list_operators(block: Any) -> Iterator[tuple[str, _Values, _Values]]:
    for op in block.ops:
        if hasattr(op, "operands_source"):  # Paddle 3
            sides = [[x for x in values if x.initialized()] for values in (op.operands_source(), op.results())]
            yield op.name().removeprefix("pd_op."), *([(x.id, *_describe(x)) for x in side] for side in sides)
        else:
            slots = sorted(op.input_names, key=lambda slot: slot not in ("Input", "X"))
            names = [name for slot in slots for name in op.input(slot)], op.output_arg_names
            yield op.type, *([(name, *_describe(block.var(name))) for name in side] for side in names)


def _describe(x: Any) -> tuple[tuple[int, ...], str]:
    is_list = hasattr(x, "is_dense_tensor_type") and not x.is_dense_tensor_type()
    return ((0,), "") if is_list else (tuple(x.shape), str(x.dtype).lower())


def _plain_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    """Compute attention of ``[batch, tokens, heads, channels]`` by operators that each device has."""
    query, key, value = (x.transpose([0, 2, 1, 3]) for x in (query, key, value))
    return F.softmax(paddle.matmul(query, key, transpose_y=True)).matmul(value).transpose([0, 2, 1, 3])
