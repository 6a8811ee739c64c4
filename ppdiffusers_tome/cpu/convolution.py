"""Convolutions on a CPU, faster and lighter than Paddle's own."""

from types import MethodType
from typing import Any

import paddle
from paddle.jit.sot import psdb
from paddle.nn import Conv2D, Layer
from ppdiffusers.models.lora import LoRACompatibleConv

from ppdiffusers_tome.cpu.kernel import compute_convolution, find_module, fits_kernel
from ppdiffusers_tome.patching.override import replace_inner_forward
from ppdiffusers_tome.patching.paddle_compat import FALLBACK

# What the kernel computes; a subclass may have a ``forward`` of its own, and other code may have replaced a class's.
_FORWARDS = tuple(
    function for package, function in (("paddle", Conv2D.forward), ("ppdiffusers", LoRACompatibleConv.forward))
    if find_module(function).startswith(f"{package}.")
)  # fmt: skip


def replace_convolutions(model: Layer) -> int:
    """Put the kernel in place of convolutions; return how many there are.

    A function that stands in place of a layer's ``forward``, other than ToMe's, stays.
    """
    restore_convolutions(model)
    layers = [layer for layer in model.sublayers(include_self=True) if type(layer).forward in _FORWARDS]
    for layer in layers:
        replace_inner_forward(layer, None, MethodType(forward, layer))
    return len(layers)


def restore_convolutions(model: Layer) -> None:
    """Restore Paddle's convolutions in place of the kernel's."""
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, Conv2D):
            # A pickle keeps a bound method by its name alone, so an unpickled layer has that of its class.
            for found in (forward, type(layer).forward):
                replace_inner_forward(layer, MethodType(found, layer), None)


@paddle.jit.not_to_static
def forward(layer: Any, *args: Any, **kwargs: Any) -> paddle.Tensor:
    """Compute a ``Conv2D`` by the kernel where its class computes the same."""
    psdb.fallback(**FALLBACK)
    if args and _fits_kernel(layer, args[0]):
        result = compute_convolution(
            args[0], layer.weight, layer.bias, stride=layer._stride, padding=layer._updated_padding,
            dilation=layer._dilation, groups=layer._groups,
        )  # fmt: skip
        if result is not None:
            return result
    return type(layer).forward(layer, *args, **kwargs)


def _fits_kernel(layer: Any, x: Any) -> bool:
    """Return whether the kernel computes what the layer's class would."""
    padding = layer._padding  # a LoRACompatibleConv reads it, and a Conv2D what was made of it
    return (
        type(layer).forward in _FORWARDS
        and fits_kernel(x, layer.weight, layer.bias)
        and getattr(layer, "lora_layer", None) is None
        and (layer._padding_mode, layer._data_format) == ("zeros", "NCHW")
        and layer._updated_padding == ([padding] * 2 if isinstance(padding, int) else list(padding))
        and len(layer._updated_padding) == 2  # not of each side
        and x.ndim == 4
        and x.shape[1] == layer.weight.shape[1] * layer._groups
    )
