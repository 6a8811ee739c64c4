"""Exact attention for CPUs, faster and lighter than ppdiffusers' own.

ppdiffusers has no memory efficient attention for CPUs. Its plain processor holds the scores of all queries and keys of
all heads and images at once, a gigabyte for two images at Stable Diffusion 1.5's finest level.
"""

from typing import Any

import paddle
from paddle.nn import Layer
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, XFormersAttnProcessor
from ppdiffusers.utils import USE_PEFT_BACKEND

from ppdiffusers_tome.cpu.kernel import compute_attention, find_module, fits_kernel


class CPUAttnProcessor:
    """Attention processor that computes ``AttnProcessor``'s result with onnxruntime.

    It is equal to rounding. Plain attention, as in ``AttnProcessor``, runs where gradients are recorded, in traced
    programs, on a GPU, in other types than float32, with a mask that differs by query, where keys are broadcast over
    images, and where onnxruntime does not work, which a warning tells.

    Args:
        replaced: the processor that ``disable_cpu_kernels`` restores; None for an ``AttnProcessor``.

    Example:
        >>> unet.set_attn_processor(CPUAttnProcessor())
    """

    def __init__(self, replaced: Any = None) -> None:
        self.replaced = AttnProcessor() if replaced is None else replaced

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # ppdiffusers checks the processor's class where it saves a LoRA, lists the processors beside one or restores
        # the default, and knows only its own classes. What it does for AttnProcessor is right for this one too.
        return AttnProcessor

    def __reduce__(self) -> tuple[type, tuple[Any]]:  # else a pickle would take the class for AttnProcessor
        return type(self), (self.replaced,)

    def __call__(
        self, attn: Any, hidden_states: paddle.Tensor, encoder_hidden_states: paddle.Tensor | None = None,
        attention_mask: paddle.Tensor | None = None, temb: paddle.Tensor | None = None, scale: float = 1.0,
        **kwargs: Any,
    ) -> paddle.Tensor:  # fmt: skip
        """Compute attention as ``AttnProcessor`` does, of which these are the arguments.

        ``hidden_states`` are ``[batch, tokens, channels]``, or ``[batch, channels, height, width]`` in a VAE, and
        ``encoder_hidden_states`` ``[batch, keys, channels]``.
        """
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
        x = _attend(attn, query, key, value, mask)
        x = attn.to_out[1](attn.to_out[0](x, *lora_scale))
        if image_shape is not None:
            x = x.transpose([0, 2, 1]).reshape(image_shape)
        if attn.residual_connection:
            x = x + hidden_states
        return x / attn.rescale_output_factor


def _attend(
    attn: Any, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, mask: paddle.Tensor | None
) -> paddle.Tensor:
    """Compute attention ``[batch, tokens, channels]`` from projections of that kind."""
    if (
        fits_kernel(query, key, value, mask)
        and query.shape[0] == key.shape[0]  # a text for several images is broadcast
        and getattr(attn.get_attention_scores, "__func__", None) is Attention.get_attention_scores
        and (mask is None or mask.shape == [query.shape[0], attn.heads, 1, key.shape[1]])  # the same for all queries
    ):
        with_mask = (query, key) if mask is None else _append_mask_channel(query, key, mask, attn.scale)
        result = compute_attention(*with_mask, value, attn.heads, attn.scale)
        if result is not None:
            return result
    query, key, value = (attn.head_to_batch_dim(x) for x in (query, key, value))
    return attn.batch_to_head_dim(paddle.matmul(attn.get_attention_scores(query, key, mask), value))


def _append_mask_channel(
    query: paddle.Tensor, key: paddle.Tensor, mask: paddle.Tensor, scale: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Append a channel to each head whose product is the mask.

    The kernel takes a mask, too, but then computes all scores at once. Queries are ``[batch, tokens, channels]``, keys
    ``[batch, keys, channels]``, and the mask ``[batch, heads, 1, keys]`` is added to products times ``scale``.
    """
    heads = mask.shape[1]
    # The lowest float32 would become infinite.
    bias = paddle.clip(mask, -1e30, 1e30).transpose([0, 3, 1, 2]) / scale
    query, key = (x.reshape([*x.shape[:2], heads, -1]) for x in (query, key))
    query = paddle.concat([query, paddle.ones_like(query[..., :1])], axis=-1)
    return query.flatten(2), paddle.concat([key, bias], axis=-1).flatten(2)


def replace_processors(model: Layer) -> int:
    """Replace plain processors by the kernel's; return how many layers have it."""
    layers = [layer for layer in _list_attention_layers(model) if _is_replaceable(layer.processor)]
    for layer in layers:
        if type(layer.processor) is not CPUAttnProcessor:
            layer.set_processor(CPUAttnProcessor(layer.processor))
    return len(layers)


def restore_processors(model: Layer) -> None:
    """Restore the processors that the kernel's replaced."""
    for layer in _list_attention_layers(model):
        if type(layer.processor) is CPUAttnProcessor:
            layer.set_processor(layer.processor.replaced)


def has_kernels(model: Layer) -> bool:
    """Return whether any attention of a model has the kernel's processor."""
    return any(type(layer.processor) is CPUAttnProcessor for layer in _list_attention_layers(model))


def _is_replaceable(processor: Any) -> bool:
    # A function that other code put on the class stays, too.
    if find_module(type(processor).__call__) != type(processor).__module__:
        return False
    # In ppdiffusers 0.29.1 the default is xFormers' processor, which tries a GPU kernel and then computes plainly.
    if type(processor) is XFormersAttnProcessor:
        return processor.attention_op is None and paddle.get_device() == "cpu"
    return type(processor) in (AttnProcessor, CPUAttnProcessor)


def _list_attention_layers(model: Layer) -> list[Any]:
    return [layer for layer in model.sublayers(include_self=True) if hasattr(layer, "set_processor")]
