"""Layers of a program in 8 bits, without calibration.

A layer's weights are rounded to whole numbers from -127 to 127, with a scale for each channel of its output. Its input
is divided by its own largest number (of each token, or of each image where a convolution mixes pixels) and rounded, and
the result is multiplied by that number again. The number is found in every call, so no calls need to be watched before,
and nothing is cut off: ZeroQuant (Yao et al. 2022, section 4.2).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from openvino import opset15
from openvino.utils.node_factory import NodeFactory

# A layer reads or writes latents or images if it has so few channels, or changes their number by more than this factor.
_FEW_CHANNELS, _MOST_TIMES = 4, 8
_BELOW_ZERO = 30  # So many of 255 steps are below zero for what swish returns, -0.2785 or more.


def quantize_layers(model: Any) -> int:
    """Write in 8 bits the layers that have weights; return how many.

    In float stay layers that read or write latents or images (by their channels), those of ``[batch, channels]``, such
    as embeddings of timesteps, and products of two activations, such as attention and similarities.
    """
    layers, rounded = list(filter(_is_quantizable, model.get_ordered_ops())), dict[Any, tuple[Any, Any]]()
    for node in layers:
        users = node.output(0).get_target_inputs()
        results = [_write_layer(node, part, weight, rounded) for part, weight in _list_parts(node)]
        result = results[0] if len(results) == 1 else opset15.add(*results)
        for user in users:
            user.replace_source_output(result.output(0))
    return len(layers)


def _is_quantizable(node: Any) -> bool:
    name = node.get_type_name()
    if name not in ("Convolution", "MatMul") or node.input_value(1).get_node().get_type_name() != "Constant":
        return False
    weight_shape = list(node.input_value(1).get_shape())
    few, many = min(weight_shape[:2]), max(weight_shape[:2])
    if few <= _FEW_CHANNELS or many > _MOST_TIMES * few:
        return False
    is_linear = len(weight_shape) == 2 and len(node.input_value(0).get_shape()) > 2
    return name == "Convolution" or (is_linear and not node.get_attributes()["transpose_a"])


def _list_parts(node: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield a layer's input and weights; two parts behind a skip connection."""
    data, weight = node.input_value(0), node.input_value(1).get_node().data
    joined = data.get_node()
    is_joined = joined.get_type_name() == "Concat" and joined.get_input_size() == 2
    if not is_joined or node.get_type_name() != "Convolution" or joined.get_attributes()["axis"] != 1:
        yield data, weight
        return
    border = joined.input_value(0).get_shape()[1]  # Each part has its own scale: Q-Diffusion (Li et al. 2023, 4.2).
    yield joined.input_value(0), weight[:, :border]
    yield joined.input_value(1), weight[:, border:]


def _write_layer(node: Any, data: Any, weight: np.ndarray, rounded: dict[Any, tuple[Any, Any]]) -> Any:
    """Return the result of a layer for a part of its input."""
    is_convolution, shape = node.get_type_name() == "Convolution", data.get_shape()
    if not is_convolution:
        axes = [len(shape) - 1]
    elif max(weight.shape[2:]) == 1 and node.get_output_shape(0)[2:] == shape[2:]:
        axes = [1]
    else:  # The convolution mixes pixels.
        axes = list(range(1, len(shape)))
    key = data.get_node().get_name(), data.get_index(), *axes
    if key not in rounded:  # Several layers have one input, as those of query, key and value.
        rounded[key] = _round_input(data, axes)
    whole, scale = rounded[key]
    output_axis = 0 if is_convolution or node.get_attributes()["transpose_b"] else 1
    weight = _round_weight(weight, tuple(axis for axis in range(weight.ndim) if axis != output_axis))
    layer = NodeFactory("opset15").create(node.get_type_name(), [whole, weight], node.get_attributes())
    return opset15.multiply(layer, scale)


def _round_input(data: Any, axes: list[int]) -> tuple[Any, Any]:
    """Divide a layer's input by a scale and round it; return both."""
    below = _BELOW_ZERO if data.get_node().get_type_name() == "Swish" else 128
    above = 255 - below
    largest = opset15.reduce_max(data, np.array(axes), keep_dims=True)
    smallest = opset15.reduce_min(data, np.array(axes), keep_dims=True)
    scale = opset15.maximum(largest, opset15.multiply(smallest, np.float32(-above / below)))
    scale = opset15.maximum(scale, np.float32(1e-12))  # An input of zeros would have none.
    ends = np.float32(-below / above), np.float32(1)
    return opset15.fake_quantize(opset15.divide(data, scale), *ends, *ends, levels=256), scale


def _round_weight(weight: np.ndarray, axes: tuple[int, ...]) -> Any:
    """Round weights that share a scale along some axes."""
    scale = np.maximum(np.abs(weight).max(axis=axes, keepdims=True) / 127, np.float32(1e-20))
    whole = np.rint(weight / scale).astype(np.int8)
    return opset15.multiply(opset15.convert(opset15.constant(whole), "f32"), opset15.constant(scale))
