"""Exact attention in chunks of queries, for CPUs.

ppdiffusers has no memory efficient attention for CPUs. Its plain processor holds the scores of all queries and keys of
all heads and images at once, a gigabyte for two images at Stable Diffusion 1.5's finest level. The scores of a chunk
fit into the cache. Chunked attention is off by default and independent of ToMe.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, TypeVar

import paddle
from ppdiffusers.models.attention_processor import AttnProcessor, XFormersAttnProcessor
from ppdiffusers.utils import USE_PEFT_BACKEND

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.masks import append_mask_channel, is_key_mask
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.settings.bounds import Bounds

T = TypeVar("T")

QUERY_ROWS = 128


class ChunkedAttnProcessor:
    """Attention processor that computes scores for a few queries at a time.

    The result equals that of ppdiffusers' ``AttnProcessor`` to rounding. It holds scores ``[heads, query_rows, keys]``
    of one image, or of several small images that together have at most ``query_rows`` queries. In training, Paddle
    keeps every chunk for the backward pass, so only gradient checkpointing saves memory.

    Args:
        query_rows: the number of queries in a chunk, 1 or more.

    Raises:
        ToMeTypeError: it is not a whole number (also a ``TypeError``).
        ToMeValueError: it is below 1 (also a ``ValueError``).

    Example:
        >>> unet.set_attn_processor(ChunkedAttnProcessor())

    Self-attention Does Not Need O(n^2) Memory (Rabe & Staats 2021), chunked over queries alone.
    """

    def __init__(self, query_rows: int = QUERY_ROWS) -> None:
        bounds = Bounds(Integral, f"a whole number of queries, 1 or more, such as {QUERY_ROWS}", 1)
        self.query_rows: int = bounds.check("query_rows", query_rows)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # ppdiffusers checks the processor's class where it saves a LoRA, lists the processors beside one or restores
        # the default, and knows only its own classes. What it does for AttnProcessor is right for this one too.
        return AttnProcessor

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return type(self), (self.query_rows,)

    def __call__(
        self,
        attn: Any,
        hidden_states: paddle.Tensor,
        encoder_hidden_states: paddle.Tensor | None = None,
        attention_mask: paddle.Tensor | None = None,
        temb: paddle.Tensor | None = None,
        scale: float = 1.0,
        **kwargs: Any,
    ) -> paddle.Tensor:
        """Compute attention as ``AttnProcessor`` does.

        Args:
            attn: the ``Attention`` layer.
            hidden_states: ``[batch, tokens, channels]``, or ``[batch, channels, height, width]`` in a VAE.
            encoder_hidden_states: ``[batch, keys, channels]``; None for self-attention.
            attention_mask: as ``attn.prepare_attention_mask`` takes it.
            temb: the spatial norm's second input, if there is such a norm.
            scale: of the LoRA layers.
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
        query = attn.head_to_batch_dim(attn.to_q(x, *lora_scale))
        key = attn.head_to_batch_dim(attn.to_k(context, *lora_scale))
        value = attn.head_to_batch_dim(attn.to_v(context, *lora_scale))
        x = attn.batch_to_head_dim(self._attend(attn, query, key, value, mask))
        x = attn.to_out[1](attn.to_out[0](x, *lora_scale))
        if image_shape is not None:
            x = x.transpose([0, 2, 1]).reshape(image_shape)
        if attn.residual_connection:
            x = x + hidden_states
        return x / attn.rescale_output_factor

    def _attend(
        self, attn: Any, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, mask: paddle.Tensor | None
    ) -> paddle.Tensor:
        """Compute attention ``[batch, heads, tokens, head_dim]`` in chunks of queries."""
        if mask is not None and is_key_mask(mask, key):
            query, key = append_mask_channel(query, key, mask, attn.scale)
            mask = None
        batch, tokens, rows = max(query.shape[0], key.shape[0]), query.shape[2], self.query_rows
        num_images = max(1, rows // tokens)  # a video's attention over time has thousands of sequences of few tokens
        images = []
        for i in range(0, batch, num_images):
            q, bias = _slice(query, 0, i, num_images), _slice(mask, 0, i, num_images)
            # These are views of a transpose, which every product would copy again; one copy is cheaper.
            k, v = (_slice(x, 0, i, num_images).contiguous() for x in (key, value))
            chunks = [
                paddle.matmul(attn.get_attention_scores(_slice(q, 2, row, rows), k, _slice(bias, 2, row, rows)), v)
                for row in range(0, tokens, rows)
            ]
            images.append(paddle.concat(chunks, axis=2))
        return paddle.concat(images, axis=0)


def enable_chunked_attention(model_or_pipe: T, query_rows: int = QUERY_ROWS) -> T:
    """Compute attention in chunks of queries in pipelines or models.

    Only layers with ppdiffusers' plain ``AttnProcessor``, or an earlier chunked one, change. The user's processors, and
    ppdiffusers' other ones (xformers, sliced, LoRA, IP-Adapter, ...), stay. It works before and after ``apply_tome``.

    Args:
        model_or_pipe: a ppdiffusers pipeline (its VAE stays as it is; ``pipe.vae`` changes it), a model, or a part of
            a model.
        query_rows: as for ``ChunkedAttnProcessor``.

    Returns:
        ``model_or_pipe``, so that calls chain.

    Raises:
        ToMeTypeError, ToMeValueError: as for ``ChunkedAttnProcessor``; or ``model_or_pipe`` is neither a pipeline nor a
            model, or none of its attention layers has a plain processor.

    Example:
        >>> pipe = enable_chunked_attention(pipe).apply_tome(ratio=0.5)
    """
    processor = ChunkedAttnProcessor(query_rows)
    layers = [layer for _, model in list_models(model_or_pipe) for layer in _attention_layers(model)]
    replaceable = [layer for layer in layers if _is_replaceable(layer.processor)]
    if not replaceable:
        processors = ", ".join(sorted({type(layer.processor).__name__ for layer in layers})) or "none"
        raise ToMeValueError(
            f"{type(model_or_pipe).__name__} has no attention to compute in chunks: only ppdiffusers' plain "
            f"AttnProcessor is replaced, and its processors are {processors}; set AttnProcessor() first with "
            "set_attn_processor, or give a model with attention, such as a Stable Diffusion UNet"
        )
    for layer in replaceable:
        layer.set_processor(processor)
    return model_or_pipe


def disable_chunked_attention(model_or_pipe: T) -> T:
    """Restore ppdiffusers' plain ``AttnProcessor`` in place of chunked attention."""
    # The VAE may have chunked attention too, if it was given by itself.
    for _, model in list_models(model_or_pipe, denoisers_only=False):
        for layer in _attention_layers(model):
            if type(layer.processor) is ChunkedAttnProcessor:
                layer.set_processor(AttnProcessor())
    return model_or_pipe


def _is_replaceable(processor: Any) -> bool:
    # In ppdiffusers 0.29.1 the default is xFormers' processor, which tries a GPU kernel and then computes plainly.
    if type(processor) is XFormersAttnProcessor:
        return processor.attention_op is None and paddle.get_device() == "cpu"
    return type(processor) in (AttnProcessor, ChunkedAttnProcessor)


def _slice(x: paddle.Tensor | None, axis: int, start: int, count: int) -> Any:
    """Return ``count`` entries of an axis, or all if it is broadcast."""
    if x is None or x.shape[axis] <= 1:
        return x
    return paddle.slice(x, [axis], [start], [start + count])


def _attention_layers(model: Any) -> list[Any]:
    return [layer for layer in model.sublayers(include_self=True) if hasattr(layer, "set_processor")]
