"""Small models that stand in for those that only a newer ppdiffusers has.

Adapters find classes by name, so these have the real names, and whatever token merging rests on: layers, calls by
position or keyword, where a text's tokens stand, in what form positions come; the rest is a plain softmax in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from ppdiffusers.models.embeddings import Timesteps

from ppdiffusers_tome.patching.adapters.adapter import FIRST, LAST
from zoo.flux import ids
from zoo.specimen import TEXT_DIM, TEXT_TOKENS, Inputs, create

USUAL = Inputs()
CHANNELS, DIM, HEADS = 4, 24, 2
# Positions of frame, row and column, each turning two pairs of a head's channels.
FREQUENCIES = (1.0, 0.3)

Rotary = tuple[Tensor, Tensor] | Tensor


class Attention(nn.Layer):
    """Attention with ppdiffusers' names of layers; a processor computes.

    The tokens of a ``text`` stand first or last, those that are ``apart`` with layers of their own; with ``cross`` keys
    are the text's alone. Keys in ``hidden_keys`` are seen by no query.
    """

    def __init__(
        self, text: str = "", *, apart: bool = False, cross: bool = False, norms: bool = True,
        across_heads: bool = False, out: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.text, self.apart, self.cross, self.across_heads, self.heads = text, apart, cross, across_heads, HEADS
        norm = partial(RMSNorm, DIM if across_heads else DIM // HEADS)
        self.to_q, self.to_k, self.to_v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.norm_q, self.norm_k = (norm(), norm()) if norms else (None, None)
        if apart:
            self.add_q_proj, self.add_k_proj, self.add_v_proj, self.to_add_out = (nn.Linear(DIM, DIM) for _ in range(4))
            self.norm_added_q, self.norm_added_k = (norm(), norm()) if norms else (None, None)
        self.to_out = nn.LayerList([nn.Linear(DIM, DIM), nn.Dropout(0.0)]) if out else []
        self.processor = Processor()
        self.hidden_keys: slice | Sequence[int] | None = None

    def forward(self, hidden_states: Tensor, **keywords: Any) -> Tensor | tuple[Tensor, Tensor]:
        return self.processor(self, hidden_states, **keywords)


class Processor:
    """The computation of ``Attention`` with its layers."""

    def __call__(
        self, attention: Attention, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None, image_rotary_emb: Rotary | None = None, rotary_emb: Rotary | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        text, rotary = encoder_hidden_states, image_rotary_emb if rotary_emb is None else rotary_emb
        heads, join = partial(self.heads, attention), partial(join_text, where=attention.text, axis=2)
        joined = text is not None and not attention.apart and not attention.cross
        tokens = join_text(hidden_states, text, attention.text) if joined else hidden_states
        asked = text if attention.cross else tokens
        queries = heads(attention.to_q(tokens), attention.norm_q)
        keys, values = heads(attention.to_k(asked), attention.norm_k), heads(attention.to_v(asked))
        if attention.apart:
            queries = join(queries, heads(attention.add_q_proj(text), attention.norm_added_q))
            keys = join(keys, heads(attention.add_k_proj(text), attention.norm_added_k))
            values = join(values, heads(attention.add_v_proj(text)))
        if rotary is not None:
            queries, keys = (rotate(x, rotary, attention.text) for x in (queries, keys))
        made = attend(queries, keys, values, attention_mask, attention.hidden_keys)
        if text is None or attention.cross:
            return self.project(attention, made)
        image, text = apart(made, text.shape[1], attention.text)
        text = attention.to_add_out(text) if attention.apart else self.project(attention, text)
        return self.project(attention, image), text

    def heads(self, attention: Attention, x: Tensor, norm: nn.Layer | None = None) -> Tensor:
        """``[batch, heads, tokens, channels of a head]``."""
        if norm is not None and attention.across_heads:
            x = norm(x)
        x = x.reshape([0, 0, HEADS, -1]).transpose([0, 2, 1, 3])
        return x if norm is None or attention.across_heads else norm(x)

    def project(self, attention: Attention, x: Tensor) -> Tensor:
        for layer in attention.to_out:
            x = layer(x)
        return x


def join_text(tokens: Tensor, text_tokens: Tensor, where: str, axis: int = 1) -> Tensor:
    return paddle.concat([text_tokens, tokens] if where == FIRST else [tokens, text_tokens], axis=axis)


def apart(tokens: Tensor, num_others: int, where: str) -> tuple[Tensor, Tensor]:
    """An image's tokens and those beside them."""
    if where == FIRST:
        return tokens[:, num_others:], tokens[:, :num_others]
    return tokens[:, :-num_others], tokens[:, -num_others:]


def rotate(x: Tensor, rotary: Rotary, text: str) -> Tensor:
    """Rotate queries or keys by rows ``[tokens, channels]`` or ``[batch, 1, tokens, channels]``.

    Where there are fewer rows than tokens, those of the text have none.
    """
    is_complex = isinstance(rotary, Tensor)
    more = x.shape[2] - (rotary if is_complex else rotary[0]).shape[-2]
    if more:
        first, last = (x[:, :, :more], x[:, :, more:]) if text == FIRST else (x[:, :, :-more], x[:, :, -more:])
        parts = [first, rotate(last, rotary, "")] if text == FIRST else [rotate(first, rotary, ""), last]
        return paddle.concat(parts, axis=2)
    pairs = x.reshape([0, 0, 0, -1, 2])
    if is_complex:
        return paddle.as_real(paddle.as_complex(pairs.astype("float64")) * rotary).flatten(3).astype("float32")
    one, other = pairs.unbind(-1)
    return x * rotary[0] + paddle.stack([-other, one], axis=-1).flatten(3) * rotary[1]


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, hidden: slice | Sequence[int] | None
) -> Tensor:
    scores = paddle.matmul(queries, keys, transpose_y=True) / math.sqrt(queries.shape[-1])
    if mask is not None:
        scores = scores + ((1 - mask.astype("float32")) * -1e9 if mask.dtype == paddle.bool else mask)
    if hidden is not None:
        seen = np.zeros(keys.shape[2], np.float32)
        seen[hidden] = -1e9
        scores = scores + paddle.to_tensor(seen)
    return paddle.matmul(F.softmax(scores, axis=-1), values).transpose([0, 2, 1, 3]).flatten(2)


class RMSNorm(nn.Layer):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([channels], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * paddle.rsqrt(x.square().mean(axis=-1, keepdim=True) + 1e-6) * self.weight


class Norm(nn.Layer):
    """A norm of tokens, moved by the timestep, which also returns the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, 3 * DIM)

    def forward(self, hidden_states: Tensor, *others: Tensor, emb: Tensor) -> tuple[Tensor, ...]:
        shift, scale, gate = self.linear(emb).unsqueeze(1).chunk(3, axis=-1)
        return (*(plain_norm(x) * (1 + scale) + shift for x in (hidden_states, *others)), gate)


def plain_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, [DIM])


def feed_forward() -> nn.Layer:
    return nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))


class TimeEmbedding(nn.Layer):
    """Of the timestep and, where it is given, the guidance: both by one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.time_proj, self.linear = Timesteps(DIM, True, 0), nn.Linear(DIM, DIM)

    def forward(self, timestep: Tensor, guidance: Tensor | None = None) -> Tensor:
        embedded = self.linear(self.time_proj(timestep))
        return embedded if guidance is None else embedded + self.linear(self.time_proj(guidance))


class RotaryEmbedding(nn.Layer):
    """Cosines and sines of positions ``[tokens, 3]``, or complex; ``share`` rows and columns have one position."""

    def __init__(self, as_complex: bool = False) -> None:
        super().__init__()
        self.as_complex, self.share = as_complex, 1

    def forward(self, positions: Tensor) -> Rotary:
        positions = paddle.floor(positions / paddle.to_tensor([1.0, self.share, self.share]))
        angles = (positions.unsqueeze(2) * paddle.to_tensor(FREQUENCIES)).flatten(1)
        if self.as_complex:
            angles = angles.astype("float64")
            return paddle.complex(paddle.cos(angles), paddle.sin(angles)).unsqueeze([0, 1])
        return paddle.cos(angles).repeat_interleave(2, axis=1), paddle.sin(angles).repeat_interleave(2, axis=1)


def places(frames: int, height: int, width: int) -> Tensor:
    """``[tokens, 3]``: frame, row and column."""
    each = paddle.meshgrid(*(paddle.arange(side, dtype="float32") for side in (frames, height, width)))
    return paddle.stack(each, axis=-1).reshape([-1, 3])


def cut_into_patches(latent: Tensor) -> Tensor:
    """Cut ``[batch, channels, frames, height, width]`` into tokens of 2 by 2 values."""
    batch, channels, frames, height, width = latent.shape
    cut = latent.reshape([batch, channels, frames, height // 2, 2, width // 2, 2])
    return cut.transpose([0, 2, 3, 5, 1, 4, 6]).reshape([batch, -1, 4 * channels])


class Patches(nn.Layer):
    """Tokens of a latent; ``order`` is that of its axes."""

    def __init__(self, order: Sequence[int] = (0, 1, 2, 3, 4)) -> None:
        super().__init__()
        self.order, self.linear = order, nn.Linear(4 * CHANNELS, DIM)

    def forward(self, latent: Tensor) -> Tensor:
        return self.linear(cut_into_patches(latent.transpose(self.order)))


class TextAndPatches(Patches):
    def forward(self, text_embeds: Tensor, image_embeds: Tensor) -> Tensor:
        return join_text(super().forward(image_embeds), text_embeds, FIRST)


class DualBlock(nn.Layer):
    """Image and text, which meet in attention alone."""

    def __init__(self, attn: Attention) -> None:
        super().__init__()
        self.norm1, self.norm1_context, self.attn = Norm(), Norm(), attn
        self.ff, self.ff_context = feed_forward(), feed_forward()

    def run(self, image: Tensor, text: Tensor, temb: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        normed, gate = self.norm1(image, emb=temb)
        normed_text, gate_of_text = self.norm1_context(text, emb=temb)
        made, of_text = self.attn(hidden_states=normed, encoder_hidden_states=normed_text, **given)
        image, text = image + gate * made, text + gate_of_text * of_text
        return image + self.ff(plain_norm(image)), text + self.ff_context(plain_norm(text))


class SingleBlock(nn.Layer):
    """Image and text in one sequence, with the feed-forward layer beside attention."""

    def __init__(self, attn: Attention) -> None:
        super().__init__()
        self.norm, self.attn = Norm(), attn
        self.proj_mlp, self.proj_out = nn.Linear(DIM, DIM), nn.Linear(2 * DIM, DIM)

    def run(self, tokens: Tensor, temb: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        normed, gate = self.norm(tokens, emb=temb)
        made = paddle.concat([attend(normed), F.gelu(self.proj_mlp(normed))], axis=2)
        return tokens + gate * self.proj_out(made)


class FluxTransformerBlock(DualBlock):
    def __init__(self, norms: bool) -> None:
        super().__init__(Attention(FIRST, apart=True, norms=norms))

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, image_rotary_emb: Rotary | None
    ) -> tuple[Tensor, Tensor]:
        return self.run(hidden_states, encoder_hidden_states, temb, image_rotary_emb=image_rotary_emb)[::-1]


class FluxSingleTransformerBlock(SingleBlock):
    def __init__(self, norms: bool) -> None:
        super().__init__(Attention(FIRST, norms=norms, out=False))

    def forward(self, hidden_states: Tensor, temb: Tensor, image_rotary_emb: Rotary | None) -> Tensor:
        attend = lambda normed: self.attn(hidden_states=normed, image_rotary_emb=image_rotary_emb)  # noqa: E731
        return self.run(hidden_states, temb, attend)


class HunyuanVideoTransformerBlock(DualBlock):
    def __init__(self, norms: bool) -> None:
        super().__init__(Attention(LAST, apart=True, norms=norms))

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, attention_mask: Tensor,
        freqs_cis: Rotary | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        given = dict(attention_mask=attention_mask, image_rotary_emb=freqs_cis)
        return self.run(hidden_states, encoder_hidden_states, temb, **given)


class HunyuanVideoSingleTransformerBlock(SingleBlock):
    def __init__(self, norms: bool) -> None:
        super().__init__(Attention(LAST, norms=norms, out=False))

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, attention_mask: Tensor,
        image_rotary_emb: Rotary | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        words = encoder_hidden_states.shape[1]

        def attend(normed: Tensor) -> Tensor:
            image, text = apart(normed, words, LAST)
            given = dict(attention_mask=attention_mask, image_rotary_emb=image_rotary_emb)
            return join_text(*self.attn(hidden_states=image, encoder_hidden_states=text, **given), LAST)

        return apart(self.run(join_text(hidden_states, encoder_hidden_states, LAST), temb, attend), words, LAST)


class CogVideoXBlock(nn.Layer):
    def __init__(self, norms: bool) -> None:
        super().__init__()
        self.norm1, self.attn1, self.norm2, self.ff = Norm(), Attention(FIRST, norms=norms), Norm(), feed_forward()

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, image_rotary_emb: Rotary | None
    ) -> tuple[Tensor, Tensor]:
        image, text = hidden_states, encoder_hidden_states
        normed, normed_text, gate = self.norm1(image, text, emb=temb)
        made, of_text = self.attn1(
            hidden_states=normed, encoder_hidden_states=normed_text, image_rotary_emb=image_rotary_emb
        )
        image, text = image + gate * made, text + gate * of_text
        normed, normed_text, gate = self.norm2(image, text, emb=temb)
        made, of_text = apart(self.ff(join_text(normed, normed_text, FIRST)), text.shape[1], FIRST)
        return image + gate * made, text + gate * of_text


class WanTransformerBlock(nn.Layer):
    def __init__(self, norms: bool) -> None:
        super().__init__()
        self.norm1, self.attn1 = Norm(), Attention(norms=norms, across_heads=True)
        self.attn2, self.ffn = Attention(cross=True, across_heads=True), feed_forward()

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, rotary_emb: Rotary | None
    ) -> Tensor:
        normed, gate = self.norm1(hidden_states, emb=temb)
        x = hidden_states + gate * self.attn1(hidden_states=normed, rotary_emb=rotary_emb)
        x = x + self.attn2(hidden_states=plain_norm(x), encoder_hidden_states=encoder_hidden_states)
        return x + self.ffn(plain_norm(x))


class Model(nn.Layer):
    """The common parts of the models; without ``rotary`` None comes in place of positions."""

    config = SimpleNamespace(patch_size=2, patch_size_t=1)
    complex_rotary = False

    def __init__(self, *, rotary: bool = True, norms: bool = True) -> None:
        super().__init__()
        self.norms = norms
        self.time_text_embed, self.context_embedder = TimeEmbedding(), nn.Linear(TEXT_DIM, DIM)
        self.rope = RotaryEmbedding(self.complex_rotary) if rotary else None

    def rotary(self, positions: Tensor) -> Rotary | None:
        return None if self.rope is None else self.rope(positions)

    def embed_video(self, shape: Sequence[int]) -> Rotary | None:
        """Embed the positions of a latent that ends in frames, height and width."""
        frames, height, width = shape
        return self.rotary(places(frames, height // 2, width // 2))


class FluxTransformer2DModel(Model):
    def __init__(self, dual: int = 1, single: int = 1, **options: bool) -> None:
        super().__init__(**options)
        self.x_embedder = nn.Linear(4 * CHANNELS, DIM)
        self.transformer_blocks = nn.LayerList([FluxTransformerBlock(self.norms) for _ in range(dual)])
        self.single_transformer_blocks = nn.LayerList([FluxSingleTransformerBlock(self.norms) for _ in range(single)])

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, timestep: Tensor, img_ids: Tensor, txt_ids: Tensor,
        guidance: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, text = self.x_embedder(hidden_states), self.context_embedder(encoder_hidden_states)
        temb = self.time_text_embed(timestep * 1000, guidance * 1000)
        rotary = self.rotary(paddle.concat([txt_ids, img_ids]))
        for block in self.transformer_blocks:
            text, x = block(hidden_states=x, encoder_hidden_states=text, temb=temb, image_rotary_emb=rotary)
        both = join_text(x, text, FIRST)
        for block in self.single_transformer_blocks:
            both = block(hidden_states=both, temb=temb, image_rotary_emb=rotary)
        return apart(both, text.shape[1], FIRST)


class HunyuanVideoTransformer3DModel(Model):
    def __init__(self, dual: int = 1, single: int = 1, **options: bool) -> None:
        super().__init__(**options)
        self.x_embedder = Patches()
        self.transformer_blocks = nn.LayerList([HunyuanVideoTransformerBlock(self.norms) for _ in range(dual)])
        self.single_transformer_blocks = nn.LayerList(
            [HunyuanVideoSingleTransformerBlock(self.norms) for _ in range(single)]
        )

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor,
        guidance: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        rotary = self.embed_video(hidden_states.shape[2:])
        temb = self.time_text_embed(timestep, guidance)
        x, text = self.x_embedder(hidden_states), self.context_embedder(encoder_hidden_states)
        seen = paddle.concat([paddle.ones(x.shape[:2]), encoder_attention_mask.astype("float32")], axis=1)
        mask = seen.astype("bool").unsqueeze([1, 2])
        for block in (*self.transformer_blocks, *self.single_transformer_blocks):
            x, text = block(x, text, temb, mask, rotary)
        return x, text


class WanTransformer3DModel(Model):
    config = SimpleNamespace(patch_size=(1, 2, 2))
    complex_rotary = True

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self.patch_embedding = Patches()
        self.blocks = nn.LayerList([WanTransformerBlock(self.norms) for _ in range(2)])

    def forward(self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        rotary = self.embed_video(hidden_states.shape[2:])
        x, temb = self.patch_embedding(hidden_states), self.time_text_embed(timestep)
        text = self.context_embedder(encoder_hidden_states)
        for block in self.blocks:
            x = block(x, text, temb, rotary)
        return x, text


class CogVideoXTransformer3DModel(Model):
    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self.patch_embed = TextAndPatches((0, 2, 1, 3, 4))
        self.transformer_blocks = nn.LayerList([CogVideoXBlock(self.norms) for _ in range(2)])

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
        frames, _, *size = hidden_states.shape[1:]
        rotary, temb = self.embed_video([frames, *size]), self.time_text_embed(timestep)
        both = self.patch_embed(self.context_embedder(encoder_hidden_states), hidden_states)
        x, text = apart(both, encoder_hidden_states.shape[1], FIRST)
        for block in self.transformer_blocks:
            x, text = block(hidden_states=x, encoder_hidden_states=text, temb=temb, image_rotary_emb=rotary)
        return x, text


@dataclass(frozen=True)
class Family:
    """A stand-in, and what a pipeline would call it with; ``text`` tokens stand beside the image's in attention."""

    name: str
    model_class: type[Model]
    arguments: Callable[[Inputs], dict[str, Any]]
    video: bool = True
    text: bool = True
    takes_mask: bool = False

    def build(self, **options: Any) -> Model:
        return create(self.model_class, **options)

    @paddle.no_grad()
    def run(self, model: Model, inputs: Inputs = USUAL, **changes: Any) -> list[np.ndarray]:
        """Return the tokens of a stand-in's image, then of its text, if any."""
        return [each.numpy() for each in model(**{**self.arguments(inputs), **changes})]


def _flux(inputs: Inputs) -> dict[str, Any]:
    img_ids, txt_ids = ids(inputs.height // 2, inputs.width // 2)
    # Pipelines give the text no positions; here it has some, or nobody would see that they are used.
    txt_ids = txt_ids + paddle.arange(TEXT_TOKENS, dtype="float32").unsqueeze(1)
    return dict(
        hidden_states=cut_into_patches(inputs.image(CHANNELS).unsqueeze(2)), encoder_hidden_states=inputs.text(),
        timestep=inputs.timesteps / 1000, guidance=paddle.full([inputs.batch], 3.5), img_ids=img_ids, txt_ids=txt_ids,
    )  # fmt: skip


def _hunyuan(inputs: Inputs) -> dict[str, Any]:
    seen = paddle.ones([inputs.batch, TEXT_TOKENS], dtype="int64")
    seen[-1, -2:] = 0  # of the last text
    return dict(
        hidden_states=inputs.image(CHANNELS, inputs.frames), timestep=inputs.timesteps,
        encoder_hidden_states=inputs.text(), encoder_attention_mask=seen,
        guidance=paddle.full([inputs.batch], 6000.0),
    )  # fmt: skip


def _wan(inputs: Inputs) -> dict[str, Any]:
    latent = inputs.image(CHANNELS, inputs.frames)
    return dict(hidden_states=latent, timestep=inputs.timesteps, encoder_hidden_states=inputs.text())


def _cogvideox(inputs: Inputs) -> dict[str, Any]:
    latent = inputs.image(inputs.frames, CHANNELS)
    return dict(hidden_states=latent, encoder_hidden_states=inputs.text(), timestep=inputs.timesteps)


FAMILIES = {
    family.name: family
    for family in (
        Family("flux", FluxTransformer2DModel, _flux, video=False, takes_mask=True),
        Family("hunyuan_video", HunyuanVideoTransformer3DModel, _hunyuan, takes_mask=True),
        Family("wan", WanTransformer3DModel, _wan, text=False),
        Family("cogvideox", CogVideoXTransformer3DModel, _cogvideox),
    )
}
