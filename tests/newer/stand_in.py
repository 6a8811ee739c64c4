"""A small FLUX for a ppdiffusers that has none.

Its names, calls, config and order of tokens are FLUX's, as adapters find classes by name. `make test-newer` runs the
same tests on the real one.
"""

from types import SimpleNamespace
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from ppdiffusers.models.attention import FeedForward
from ppdiffusers.models.attention_processor import Attention
from ppdiffusers.models.embeddings import CombinedTimestepTextProjEmbeddings
from ppdiffusers.models.normalization import AdaLayerNormZero

Rotary = tuple[Tensor, Tensor]


class Processor:
    """Attention of the image's tokens and, in double blocks, the text's."""

    def __call__(
        self, attn: Attention, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None, image_rotary_emb: Rotary | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        x, text = hidden_states, encoder_hidden_states
        query, key = self.heads(attn, attn.to_q(x), attn.norm_q), self.heads(attn, attn.to_k(x), attn.norm_k)
        value = self.heads(attn, attn.to_v(x))
        if text is not None:
            text_query = self.heads(attn, attn.add_q_proj(text), attn.norm_added_q)
            text_key = self.heads(attn, attn.add_k_proj(text), attn.norm_added_k)
            text_value = self.heads(attn, attn.add_v_proj(text))
            query, key = paddle.concat([text_query, query], axis=2), paddle.concat([text_key, key], axis=2)
            value = paddle.concat([text_value, value], axis=2)
        if image_rotary_emb is not None:
            query, key = rotate(query, image_rotary_emb), rotate(key, image_rotary_emb)
        query, key, value = (each.transpose([0, 2, 1, 3]) for each in (query, key, value))
        made = F.scaled_dot_product_attention_(query, key, value, attn_mask=attention_mask).flatten(2)
        if text is None:
            return made
        words = text.shape[1]
        return attn.to_out[0](made[:, words:]), attn.to_add_out(made[:, :words])

    @staticmethod
    def heads(attn: Attention, x: Tensor, norm: nn.Layer | None = None) -> Tensor:
        """``[batch, heads, tokens, channels of a head]``."""
        x = x.reshape([0, 0, attn.heads, -1]).transpose([0, 2, 1, 3])
        return x if norm is None else norm(x)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    one, other = x.reshape([*x.shape[:3], -1, 2]).unbind(-1)
    return x * rotary[0] + paddle.stack([-other, one], axis=-1).flatten(3) * rotary[1]


def attention(dim: int, heads: int, **settings: Any) -> Attention:
    attn = Attention(dim, heads=heads, dim_head=dim // heads, bias=True, out_dim=dim, processor=Processor(), **settings)
    attn.norm_q, attn.norm_k = nn.LayerNorm(dim // heads), nn.LayerNorm(dim // heads)
    return attn


class FluxTransformerBlock(nn.Layer):
    """Image and text, which meet in attention alone."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm1_context = AdaLayerNormZero(dim), AdaLayerNormZero(dim)
        self.attn = attention(dim, heads, added_kv_proj_dim=dim, context_pre_only=False)
        self.attn.norm_added_q, self.attn.norm_added_k = nn.LayerNorm(dim // heads), nn.LayerNorm(dim // heads)
        self.ff, self.ff_context = (FeedForward(dim, activation_fn="gelu-approximate") for _ in range(2))

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, image_rotary_emb: Rotary
    ) -> tuple[Tensor, Tensor]:
        image, text = hidden_states, encoder_hidden_states
        normed, gate, *_ = self.norm1(image, emb=temb)
        normed_text, gate_of_text, *_ = self.norm1_context(text, emb=temb)
        made, of_text = self.attn(
            hidden_states=normed, encoder_hidden_states=normed_text, image_rotary_emb=image_rotary_emb
        )
        image, text = image + gate.unsqueeze(1) * made, text + gate_of_text.unsqueeze(1) * of_text
        return text + self.ff_context(plain_norm(text)), image + self.ff(plain_norm(image))


class FluxSingleTransformerBlock(nn.Layer):
    """Image and text in one sequence, with the feed-forward layer beside attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attn = AdaLayerNormZero(dim), attention(dim, heads)
        self.proj_mlp, self.proj_out = nn.Linear(dim, dim), nn.Linear(2 * dim, dim)

    def forward(self, hidden_states: Tensor, temb: Tensor, image_rotary_emb: Rotary) -> Tensor:
        normed, gate, *_ = self.norm(hidden_states, emb=temb)
        made = self.attn(hidden_states=normed, image_rotary_emb=image_rotary_emb)
        made = paddle.concat([made, F.gelu(self.proj_mlp(normed))], axis=2)
        return hidden_states + gate.unsqueeze(1) * self.proj_out(made)


def plain_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


class TimeEmbedding(CombinedTimestepTextProjEmbeddings):
    """The embedding of the timestep, the pooled text and the guidance, in this order."""

    def forward(self, timestep: Tensor, guidance: Tensor, pooled: Tensor) -> Tensor:
        return super().forward(timestep, pooled) + self.timestep_embedder(self.time_proj(guidance))


class Positions(nn.Layer):
    """Cosines and sines of positions ``[tokens, 3]``, for so many channels of each axis."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, ids: Tensor) -> Rotary:
        angles = [
            ids[:, axis].unsqueeze(1) * 0.3 ** paddle.arange(channels // 2, dtype="float32")
            for axis, channels in enumerate(self.channels)
        ]
        angles = paddle.concat(angles, axis=1).repeat_interleave(2, axis=1)
        return paddle.cos(angles), paddle.sin(angles)


class FluxTransformer2DModel(nn.Layer):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.config = config = SimpleNamespace(**settings)
        heads, channels = config.num_attention_heads, config.in_channels
        dim = heads * config.attention_head_dim
        self.pos_embed = Positions(config.axes_dims_rope)
        self.time_text_embed = TimeEmbedding(dim, config.pooled_projection_dim)
        self.x_embedder, self.context_embedder = nn.Linear(channels, dim), nn.Linear(config.joint_attention_dim, dim)
        blocks = [FluxTransformerBlock(dim, heads) for _ in range(config.num_layers)]
        single_blocks = [FluxSingleTransformerBlock(dim, heads) for _ in range(config.num_single_layers)]
        self.transformer_blocks, self.single_transformer_blocks = nn.LayerList(blocks), nn.LayerList(single_blocks)
        self.proj_out = nn.Linear(dim, channels)

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, pooled_projections: Tensor, timestep: Tensor,
        img_ids: Tensor, txt_ids: Tensor, guidance: Tensor,
    ) -> tuple[Tensor]:  # fmt: skip
        x, text = self.x_embedder(hidden_states), self.context_embedder(encoder_hidden_states)
        temb = self.time_text_embed(timestep * 1000, guidance * 1000, pooled_projections)
        img_ids = img_ids[0] if img_ids.ndim == 3 else img_ids
        rotary = self.pos_embed(paddle.concat([txt_ids, img_ids]))
        for block in self.transformer_blocks:
            text, x = block(hidden_states=x, encoder_hidden_states=text, temb=temb, image_rotary_emb=rotary)
        x = paddle.concat([text, x], axis=1)
        for block in self.single_transformer_blocks:
            x = block(hidden_states=x, temb=temb, image_rotary_emb=rotary)
        return (self.proj_out(plain_norm(x[:, text.shape[1] :])),)
