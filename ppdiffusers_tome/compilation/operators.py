"""Paddle's operators as OpenVINO's, one entry each.

All shapes of a traced call are fixed, so an operator's result has the shape that Paddle found, and what computes shapes
is not needed. An operator that is missing here makes a call uncompilable only where its result is used.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import openvino
from openvino import opset15 as ov
from openvino.passes import ConstantFolding, Manager

from ppdiffusers_tome.errors import UncompilableError

# Attributes, by name, of which only these values can be written.
_ACCEPTED = {
    "padding_idx": (-1,), "flatten": (False,), "padding_algorithm": ("EXPLICIT",), "align_corners": (False,),
    "data_format": ("NCHW", "NCDHW"),
}  # fmt: skip
# OpenVINO computes float16 in float32, and saturates whole numbers of 8 bits where Paddle wraps around.
_TYPES = ("float32", "float64", "int32", "int64", "bool")


class Operator:
    """An operator of Paddle with its inputs in OpenVINO's program.

    An input is an output of a node, a list of such (``builtin.combine``), or None where it is missing.
    """

    def __init__(self, operator: Any, inputs: Sequence[Any]) -> None:
        self.name, self.inputs = operator.name(), inputs
        self._attributes, self.results = operator.attrs(), operator.results()
        for name in _ACCEPTED.keys() & self._attributes.keys():
            if self._attributes[name] not in _ACCEPTED[name]:
                raise UncompilableError(f"{self.name} has {name}={self._attributes[name]!r}")

    def __getitem__(self, attribute: str) -> Any:
        return self._attributes[attribute]

    @property
    def x(self) -> Any:
        """The first input."""
        return self.inputs[0]

    @property
    def x_shape(self) -> list[int]:
        """The shape of the first input."""
        return list(self.x.get_shape())

    @property
    def dtype(self) -> np.dtype:
        """The type of the result."""
        return find_dtype(self.results[0].dtype)

    def compute(self, number: int) -> np.ndarray:
        """Compute a constant input, such as a shape, as numbers in a row."""
        node = self.inputs[number].get_node()
        if node.get_type_name() != "Constant":
            try:
                model = openvino.Model([ov.result(node)], [])
            except RuntimeError:  # The node depends on an input of the program.
                raise UncompilableError(f"{self.name} has a shape that is known only at run time") from None
            folding = Manager()
            folding.register_pass(ConstantFolding())
            folding.run_passes(model)
            node = model.get_results()[0].input_value(0).get_node()
        return node.data.reshape(-1)


def find_dtype(dtype: Any) -> np.dtype:
    """Return numpy's type for one of Paddle's programs."""
    name = str(dtype).rsplit(".", 1)[-1].lower()
    if name not in _TYPES:
        raise UncompilableError(f"it computes in {name}")
    return np.dtype(name)


def _scale(op: Operator) -> Any:
    scale, bias = np.array(op.compute(1)[0], op.dtype), np.array(op["bias"], op.dtype)
    if not op["bias_after_scale"]:
        return ov.multiply(ov.add(op.x, bias), scale)
    scaled = op.x if scale == 1 else ov.multiply(op.x, scale)
    return scaled if bias == 0 else ov.add(scaled, bias)


def _reshape(x: Any, shape: Any) -> Any:
    return ov.reshape(x, np.array(shape, np.int64), special_zero=True)  # 0 keeps an axis, as in Paddle


def _flatten(op: Operator) -> Any:
    shape, begin, end = op.x_shape, op["start_axis"], op["stop_axis"]
    end %= max(1, len(shape))
    return _reshape(op.x, [*shape[:begin], math.prod(shape[begin : end + 1]), *shape[end + 1 :]])


def _squeeze(op: Operator) -> Any:
    shape = op.x_shape
    axes = [axis % len(shape) for axis in op.compute(1)] or range(len(shape))
    return _reshape(op.x, [side for axis, side in enumerate(shape) if side != 1 or axis not in axes])


def _expand(op: Operator) -> Any:
    shape = op.compute(1).astype(np.int64)
    kept = [1] * (len(shape) - len(op.x_shape)) + op.x_shape
    return ov.broadcast(op.x, np.where(shape == -1, kept, shape))


def _split(op: Operator, axis: int, lengths: Any) -> list[Any]:
    return [ov.variadic_split(op.x, np.array(axis, np.int64), np.array(lengths, np.int64)).outputs()]


def _split_evenly(op: Operator) -> list[Any]:
    axis = int(op.compute(1)[0])
    return _split(op, axis, [op.x_shape[axis] // op["num"]] * op["num"])


def _unbind(op: Operator) -> list[Any]:
    axis = np.array(op["axis"], np.int64)
    return [[ov.gather(op.x, np.array(number), axis).output(0) for number in range(op.x_shape[axis])]]


def _slice(op: Operator) -> Any:
    axes = np.array(op["axes"], np.int64)
    part = ov.slice(op.x, op.compute(1), op.compute(2), np.ones_like(axes), axes)
    return ov.squeeze(part, np.array(op["decrease_axis"], np.int64)) if op["decrease_axis"] else part


def _scatter(op: Operator) -> Any:
    data, index, updates = op.inputs
    if op["overwrite"]:
        return ov.scatter_update(data, index, updates, np.array(0, np.int64))
    if op.compute(0).any():  # Paddle first sets the rows to zero that it adds to.
        raise UncompilableError("pd_op.scatter adds to other numbers than zeros")
    return ov.scatter_nd_update(data, ov.unsqueeze(index, np.array(-1, np.int64)), updates, "sum")


def _sort(op: Operator) -> list[Any]:
    length = np.array(op.x_shape[op["axis"]], np.int64)
    mode = "max" if op["descending"] else "min"
    node = ov.topk(op.x, length, op["axis"], mode, "value", index_element_type="i64", stable=op["stable"])
    return list(node.outputs())


def _argmax(op: Operator) -> Any:
    axis = op.compute(1)[0]
    # Paddle takes the first of equal numbers. So does ``stable``, in seven times the time; equal real numbers are rare.
    stable, kind = op.x.get_element_type().is_integral(), openvino.Type(op.dtype).to_string()
    found = ov.topk(op.x, np.array(1, np.int64), int(axis), "max", "value", index_element_type=kind, stable=stable)
    best = found.output(1)
    return best if op["keepdims"] else ov.squeeze(best, np.array([axis], np.int64))


def _reduce(function: Callable[..., Any]) -> Callable[[Operator], Any]:
    def write(op: Operator) -> Any:
        axes = np.array(op["axis"] if len(op.inputs) == 1 else op.compute(1), np.int64)
        x = ov.convert(op.x, openvino.Type(op.dtype).to_string())  # Paddle adds up whole numbers in int64.
        return function(x, axes if axes.size else np.arange(len(op.x_shape)), keep_dims=op["keepdim"])

    return write


def _convolution(op: Operator) -> Any:
    weight, groups, paddings = op.inputs[1], op["groups"], list(op["paddings"])
    is_even = len(paddings) == len(op.x_shape) - 2
    begin, end = (paddings, paddings) if is_even else (paddings[::2], paddings[1::2])
    if groups == 1:
        return ov.convolution(op.x, weight, op["strides"], begin, end, op["dilations"])
    outputs, *rest = weight.get_shape()
    weight = _reshape(weight, [groups, outputs // groups, *rest])
    return ov.group_convolution(op.x, weight, op["strides"], begin, end, op["dilations"])


def _pool(op: Operator) -> Any:
    (height, width), (high, wide) = op.x_shape[2:], op.compute(1).astype(np.int64)
    is_even = not any((*op["paddings"], height % high, width % wide)) and list(op["strides"]) == [high, wide]
    if not is_even or op["pooling_type"] != "avg" or op["adaptive"]:
        raise UncompilableError(f"{op.name} is not the mean of tiles")
    tiles = _reshape(op.x, [0, 0, height // high, high, width // wide, wide])
    return ov.reduce_mean(tiles, np.array([3, 5]), keep_dims=False)


def _repeat(op: Operator) -> Any:
    index = np.repeat(np.arange(op.x_shape[op["axis"]]), op["repeats"])
    return ov.gather(op.x, index, np.array(op["axis"], np.int64))


def _group_norm(op: Operator) -> Any:
    scale, bias = _find_scale_and_bias(op, op.x_shape[1:2])
    return ov.group_normalization(op.x, scale, bias, op["groups"], op["epsilon"])


def _multiply(op: Operator) -> Any:
    x, node = op.x, op.x.get_node()
    if node.get_type_name() == "GroupNormalization" and op.inputs[1].get_node().get_type_name() != "Constant":
        # OpenVINO 2026.4 would make one kernel of both nodes, which ends the process.
        settings, (data, scale, bias) = node.get_attributes(), node.input_values()
        rows = _reshape(data, [0, 0, -1])
        normal = ov.group_normalization(rows, scale, bias, settings["num_groups"], settings["epsilon"])
        x = _reshape(normal, op.x_shape)
    return ov.multiply(x, op.inputs[1])


def _layer_norm(op: Operator) -> Any:
    begin = op["begin_norm_axis"]
    scale, bias = _find_scale_and_bias(op, op.x_shape[begin:])
    normal = ov.mvn(op.x, np.arange(begin, len(op.x_shape)), True, op["epsilon"], "inside_sqrt")
    return ov.add(ov.multiply(normal, scale), bias)


def _find_scale_and_bias(op: Operator, shape: list[int]) -> list[Any]:
    """Return the second and third input in a shape; ones and zeros where missing."""
    defaults = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    pairs = zip(op.inputs[1:3], defaults, strict=True)
    return [ov.constant(default) if given is None else _reshape(given, shape) for given, default in pairs]


def _interpolate(op: Operator) -> Any:
    method, sizes = op["interp_method"], [each for each in (op["out_d"], op["out_h"], op["out_w"]) if each > 0]
    if op.inputs[1] is not None:  # In a UNet, a side that is no multiple of 64 pixels follows another layer's shape.
        sizes = op.compute(1).tolist()
    if any(each is not None for each in op.inputs[2:]):
        raise UncompilableError(f"{op.name} gets its size at run time")
    # Paddle's nearest pixel is that at the left, from which its linear mode 1 counts, too.
    coordinates = "half_pixel" if method == "bilinear" and op["align_mode"] == 0 else "asymmetric"
    return ov.interpolate(
        op.x, np.array(sizes or op["scale"], np.int64 if sizes else np.float32),
        {"nearest": "nearest", "bilinear": "linear_onnx"}[method], "sizes" if sizes else "scales",
        coordinate_transformation_mode=coordinates, nearest_mode="floor", axes=np.arange(2, len(op.x_shape)),
    )  # fmt: skip


def _pad(op: Operator) -> Any:
    paddings = op.compute(1).astype(np.int64)
    begin, end = np.zeros((2, len(op.x_shape)), np.int64)
    begin[2:], end[2:] = paddings[::2][::-1], paddings[1::2][::-1]  # Paddle begins with the last axis.
    mode = {"replicate": "edge"}.get(op["mode"], op["mode"])
    return ov.pad(op.x, begin, end, mode, np.array(op["pad_value"], op.dtype))


def _clip(op: Operator) -> Any:
    low, high = (np.array(op.compute(number)[0], op.dtype) for number in (1, 2))
    return ov.minimum(ov.maximum(op.x, low), high)


def _dropout(op: Operator) -> Any:
    if op.compute(2)[0] and not (op["is_test"] and op["mode"] == "upscale_in_train"):
        raise UncompilableError("a layer of it drops numbers at random, as in training; call its eval()")
    return op.x


def _call(function: Callable[..., Any]) -> Callable[[Operator], Any]:
    return lambda op: function(*op.inputs)


def _check(write: Callable[[Operator], Any]) -> Callable[[Operator], Any]:
    """Refuse results of another type or shape than Paddle's."""

    def write_checked(op: Operator) -> Any:
        try:
            written = write(op)
        except (RuntimeError, TypeError) as error:  # OpenVINO refuses the inputs.
            raise UncompilableError(f"{op.name}: {error}") from error
        for node, result in zip(written if isinstance(written, list) else [written], op.results, strict=False):
            if not isinstance(node, list):
                dtype = node.dtype if isinstance(node, np.ndarray) else node.get_element_type().to_dtype()
                is_known = -1 not in result.shape
                if dtype != find_dtype(result.dtype) or (is_known and list(node.shape) != list(result.shape)):
                    raise UncompilableError(f"{op.name} gives {dtype} {list(node.shape)}")
        return written

    return write_checked


# Operators that OpenVINO has under the same names, and under others.
_NAMESAKES = (
    "abs", "add", "ceil", "cos", "divide", "equal", "erf", "floor", "gather_nd", "logical_and", "logical_not",
    "logical_or", "maximum", "minimum", "not_equal", "relu", "sigmoid", "sin", "sqrt", "subtract", "swish", "tanh",
)  # fmt: skip
_RENAMED = {
    "elementwise_pow": ov.power, "remainder": ov.floor_mod, "less_than": ov.less, "less_equal": ov.less_equal,
    "greater_than": ov.greater, "greater_equal": ov.greater_equal, "silu": ov.swish, "where": ov.select,
}  # fmt: skip
# Writers by the operator's name without an underscore at its end. Each gives the node or array of its result, or a list
# with an entry for each result; where Paddle's result is a list, the entry is one, too.
_WRITERS: dict[str, Callable[[Operator], Any]] = {
    **{name: _call(getattr(ov, name)) for name in _NAMESAKES},
    **{name: _call(function) for name, function in _RENAMED.items()},
    **{name: _reduce(getattr(ov, f"reduce_{name}")) for name in ("sum", "max", "min", "mean")},
    **dict.fromkeys(("assign", "share_data"), lambda op: op.x),
    **dict.fromkeys(("conv2d", "conv3d", "depthwise_conv2d"), _convolution),
    **dict.fromkeys(("nearest_interp", "bilinear_interp"), _interpolate),
    **dict.fromkeys(("shape", "shape64"), lambda op: np.array(op.x_shape, op.dtype)),
    # For whole numbers Paddle's program calls the result whole, though it is real: ``_check`` refuses these.
    "exp": lambda op: ov.exp(ov.convert(op.x, "f32")),
    "log": lambda op: ov.log(ov.convert(op.x, "f32")),
    "log_softmax": lambda op: ov.log_softmax(op.x, op["axis"]),
    "multiply": _multiply,
    "leaky_relu": lambda op: ov.prelu(op.x, np.array([op["negative_slope"]], op.dtype)),
    "gelu": lambda op: ov.gelu(op.x, "tanh" if op["approximate"] else "erf"),
    "square": lambda op: ov.multiply(op.x, op.x),
    # A quotient would become other nodes, which lose the mark of ``precision.py``.
    "rsqrt": lambda op: ov.power(op.x, np.array(-0.5, op.dtype)),
    "reciprocal": lambda op: ov.divide(np.array(1, op.dtype), op.x),
    "pow": lambda op: ov.power(op.x, np.array(op["y"], op.dtype)),
    "scale": _scale,
    "clip": _clip,
    "cast": lambda op: ov.convert(op.x, openvino.Type(op.dtype).to_string()),
    "dropout": _dropout,
    "softmax": lambda op: ov.softmax(op.x, op["axis"]),
    "matmul": lambda op: ov.matmul(op.x, op.inputs[1], op["transpose_x"], op["transpose_y"]),
    "einsum": lambda op: ov.einsum(op.x, op["equation"]),
    "bmm": lambda op: ov.matmul(op.x, op.inputs[1], False, False),
    "reshape": lambda op: _reshape(op.x, op.compute(1)),
    "flatten": _flatten,
    "squeeze": _squeeze,
    "unsqueeze": lambda op: reduce(ov.unsqueeze, op.compute(1), op.x),  # Paddle counts the axes anew after each.
    "expand": _expand,
    "tile": lambda op: ov.tile(op.x, op.compute(1)),
    "transpose": lambda op: ov.transpose(op.x, np.array(op["perm"], np.int64) % max(1, len(op.x_shape))),
    "concat": lambda op: ov.concat(op.x, int(op.compute(1)[0])),
    "stack": lambda op: ov.concat([ov.unsqueeze(each, np.array(op["axis"], np.int64)) for each in op.x], op["axis"]),
    "split": lambda op: _split(op, int(op.compute(2)[0]), op.compute(1)),
    "split_with_num": _split_evenly,
    "unbind": _unbind,
    "slice": _slice,
    "repeat_interleave": _repeat,
    "gather": lambda op: ov.gather(op.x, op.inputs[1], np.array(op.compute(2)[0], np.int64)),
    "index_select": lambda op: ov.gather(op.x, op.inputs[1], np.array(op["axis"], np.int64)),
    "embedding": lambda op: ov.gather(op.inputs[1], op.x, np.array(0, np.int64)),
    "scatter": _scatter,
    "argsort": _sort,
    "argmax": _argmax,
    "pool2d": _pool,
    "pad3d": _pad,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "full": lambda op: np.full(op["shape"], op["value"], op.dtype),
    "full_with_tensor": lambda op: np.full(op.compute(1).astype(np.int64), op.compute(0)[0], op.dtype),
    "full_like": lambda op: np.full(op.x_shape, op.compute(1)[0], op.dtype),
    "full_int_array": lambda op: np.array(op["value"], op.dtype),
    "assign_value": lambda op: np.array(op["values"]).astype(op.dtype).reshape(op["shape"]),
    "logspace": lambda op: np.logspace(
        op.compute(0)[0], op.compute(1)[0], op.compute(2)[0], base=op.compute(3)[0]
    ).astype(op.dtype),
    "arange": lambda op: np.arange(*(op.compute(number)[0] for number in range(3))).astype(op.dtype),
}
OPERATORS = {name: _check(write) for name, write in _WRITERS.items()}
