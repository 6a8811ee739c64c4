"""Attention and convolutions a slice at a time, for the comparison of a program.

At 1024x1024, plain attention holds 20 GiB of scores of all queries and keys at once, and Paddle's convolution 9 GiB of
an unfolded image.
"""

from types import MethodType
from typing import Any

import paddle
from paddle.nn import Conv2D, Layer
from paddle.nn import functional as F
from ppdiffusers.models import attention_processor
from ppdiffusers.models.attention_processor import XFormersAttnProcessor
from ppdiffusers.models.lora import LoRACompatibleConv
from ppdiffusers.utils import USE_PEFT_BACKEND

from ppdiffusers_tome.patching.slots import replace_inner_forward

CONVOLUTIONS = (Conv2D.forward, LoRACompatibleConv.forward)  # A subclass may have a ``forward`` of its own.
_MOST_SCORES = 2**26  # So many scores are held at once, 256 MiB.
_MOST_UNFOLDED = 2**22  # So many unfolded pixels are held at once, 16 MiB; more are slower.


def compute_in_slices(model: Layer) -> None:
    """Let a model's plain attention and convolutions compute in slices.

    It cannot be undone: give a twin, not a user's model. Other processors stay.
    """
    for layer in model.sublayers(include_self=True):
        if is_plain(getattr(layer, "processor", None)):
            layer.set_processor(SlicedProcessor())
        if type(layer).forward in CONVOLUTIONS:
            replace_inner_forward(layer, None, MethodType(_convolve, layer))


def is_plain(processor: Any) -> bool:
    """Return whether a processor computes plain attention."""
    # In ppdiffusers 0.29.1 the default is xFormers' processor, which tries a GPU kernel and then computes plainly.
    if type(processor) is XFormersAttnProcessor:
        return processor.attention_op is None and paddle.get_device() == "cpu"
    return type(processor) is attention_processor.AttnProcessor


class SlicedProcessor(attention_processor.AttnProcessor):
    """The plain attention of some queries at a time."""

    def __call__(
        self, attn: Any, hidden_states: paddle.Tensor, encoder_hidden_states: paddle.Tensor | None = None,
        attention_mask: paddle.Tensor | None = None, temb: paddle.Tensor | None = None, scale: float = 1.0,
        **kwargs: Any,
    ) -> paddle.Tensor:  # fmt: skip
        """Compute attention, of tokens or, in a VAE, of an image's pixels."""
        lora_scale = () if USE_PEFT_BACKEND else (scale,)
        x = hidden_states if attn.spatial_norm is None else attn.spatial_norm(hidden_states, temb)
        image_shape = x.shape if x.ndim == 4 else None
        if image_shape is not None:
            x = x.flatten(2).transpose([0, 2, 1])
        batch, num_keys, _ = x.shape if encoder_hidden_states is None else encoder_hidden_states.shape
        mask = attn.prepare_attention_mask(attention_mask, num_keys, batch)
        if attn.group_norm is not None:
            x = attn.group_norm(x.transpose([0, 2, 1])).transpose([0, 2, 1])
        context = x
        if encoder_hidden_states is not None:
            context = encoder_hidden_states
            if attn.norm_cross is not None:
                context = attn.norm_encoder_hidden_states(context)
        query, key, value = attn.to_q(x, *lora_scale), attn.to_k(context, *lora_scale), attn.to_v(context, *lora_scale)
        x = attn.to_out[1](attn.to_out[0](self.attend(attn, query, key, value, mask), *lora_scale))
        if image_shape is not None:
            x = x.transpose([0, 2, 1]).reshape(image_shape)
        if attn.residual_connection:
            x = x + hidden_states
        return x / attn.rescale_output_factor

    def attend(
        self, attn: Any, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, mask: paddle.Tensor | None
    ) -> paddle.Tensor:
        """Compute attention ``[batch, tokens, channels]`` from projections of that kind."""
        query, key, value = map(attn.head_to_batch_dim, (query, key, value))
        batch, heads, num_queries, _ = query.shape
        size, parts = max(1, _MOST_SCORES // (batch * heads * key.shape[2])), []
        for begin in range(0, num_queries, size):
            here = slice(begin, begin + size)
            part = mask if mask is None or mask.shape[2] == 1 else mask[:, :, here]  # One row is for all queries.
            parts.append(paddle.matmul(attn.get_attention_scores(query[:, :, here], key, part), value))
        return attn.batch_to_head_dim(paddle.concat(parts, axis=2))


def _convolve(layer: Any, x: paddle.Tensor, *args: Any, **kwargs: Any) -> paddle.Tensor:
    """Compute a convolution in its layer's place, some rows at a time."""
    padding = [layer._padding] * 2 if isinstance(layer._padding, int) else layer._padding
    if (
        x.ndim != 4 or x.size * layer.weight[0, 0].size <= _MOST_UNFOLDED
        or getattr(layer, "lora_layer", None) is not None
        or (layer._padding_mode, layer._data_format) != ("zeros", "NCHW")
        or len(padding) != 2 or not all(isinstance(each, int) for each in padding)  # It may be a word, or one a side.
    ):  # fmt: skip
        return type(layer).forward(layer, x, *args, **kwargs)
    x = F.pad(x, [padding[1], padding[1], padding[0], padding[0]])
    stride, reach = layer._stride[0], layer._dilation[0] * (layer.weight.shape[2] - 1) + 1  # These are of rows.
    num_rows = (x.shape[2] - reach) // stride + 1
    size = max(1, num_rows * _MOST_UNFOLDED // (x.size * layer.weight[0, 0].size))
    parts = [
        F.conv2d(
            x[:, :, begin * stride : (min(begin + size, num_rows) - 1) * stride + reach], layer.weight, layer.bias,
            stride=layer._stride, dilation=layer._dilation, groups=layer._groups,
        )
        for begin in range(0, num_rows, size)
    ]  # fmt: skip
    return paddle.concat(parts, axis=2)
