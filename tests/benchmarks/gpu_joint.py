"""The cost of a call of a joint transformer (SD3) on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu_costs import FULL, HALF, Costs, add_kernel, attention_costs, elementwise, kernel, linear
from benchmarks.gpu_unet import Attentions, Keys

LEVEL = PATCH = 2  # of the latent, which has 16 channels
LATENT_CHANNELS, TIME_CHANNELS = 16, 256


@dataclass(frozen=True)
class JointTransformer:
    """diffusers' ``SD3Transformer2DModel`` or ``FluxTransformer2DModel``; ppdiffusers has the same.

    Attributes:
        channels: of a token.
        head_channels: of an attention head.
        blocks: in which image and text have weights of their own.
        single_blocks: in which they share them, FLUX's.
        second_attentions: how many blocks attend over the image alone too, SD3.5 medium's.
        text_tokens, text_channels, pooled_channels: of the text.
        normed: whether queries and keys are normed, as since SD3.5.
        rotary: whether they are turned by a rotary embedding, as in FLUX.
        text_ends: whether the last block leaves the text as it is, as in SD3.
    """

    channels: int
    head_channels: int
    blocks: int
    text_tokens: int
    pooled_channels: int
    single_blocks: int = 0
    second_attentions: int = 0
    text_channels: int = 4096
    normed: bool = True
    rotary: bool = False
    text_ends: bool = True

    def attentions(self, pixels: int) -> list[Attentions]:
        """Return the self-attentions; a second one and a single block count as one."""
        number = self.blocks + self.single_blocks + self.second_attentions
        return [Attentions(LEVEL, _side(pixels), self.channels, number)]

    def costs(self, pixels: int, batch: int, keys: Keys) -> Costs:
        """Count the kernels of one call of ``batch`` rows."""
        tokens = _side(pixels) ** 2
        call = _Call(self, batch, tokens, keys(LEVEL, tokens))
        costs, last = call.embeddings(), self.blocks - 1
        for number in range(self.blocks):
            costs += call.block(second=number < self.second_attentions, ends=self.text_ends and number == last)
        if self.single_blocks:
            both = batch * (tokens + self.text_tokens) * self.channels
            costs += [kernel(both, both), *(self.single_blocks * call.single_block())]
        latent = PATCH**2 * LATENT_CHANNELS
        rows = batch * tokens
        return costs + call.modulate(rows, 2) + linear(rows, self.channels, latent) + elementwise(rows * latent)


@dataclass(frozen=True)
class _Call:
    """The parts of one call of a transformer."""

    model: JointTransformer
    batch: int
    tokens: int
    keys: int

    def embeddings(self) -> Costs:
        """Of the image, the text, and of timestep and pooled text."""
        channels, model, rows = self.model.channels, self.model, self.batch * self.tokens
        image = [*linear(rows, PATCH**2 * LATENT_CHANNELS, channels), add_kernel(rows * channels)]
        text = linear(self.batch * model.text_tokens, model.text_channels, channels)
        inners = [TIME_CHANNELS, model.pooled_channels]
        conditions = [cost for inner in inners for cost in linear(self.batch, inner, channels)]
        conditions += 2 * (elementwise(self.batch * channels) + linear(self.batch, channels, channels))
        return image + text + conditions + elementwise(self.batch * channels, 12)  # of sines, and the step's number

    def modulate(self, rows: int, parts: int) -> Costs:
        """Count a norm that the timestep scales and shifts, ``parts`` in all."""
        channels = self.model.channels
        made = parts * self.batch * channels
        shift = elementwise(self.batch * channels) + linear(self.batch, channels, parts * channels) + elementwise(made)
        return shift + self._scale(rows)

    def block(self, *, second: bool, ends: bool) -> Costs:
        """Joint attention, perhaps a second one, and an MLP each for image and text."""
        model, channels = self.model, self.model.channels
        rows, text = self.batch * self.tokens, self.batch * model.text_tokens
        costs = self.modulate(rows, 9 if second else 6) + self.modulate(text, 2 if ends else 6)
        costs += self._project(rows, self.batch * self.keys) + self._project(text, text)
        # Queries, keys and values, each of image and text, are joined.
        joined = (self.tokens, self.keys, self.keys)
        costs += [kernel(2 * self.batch * (count + model.text_tokens) * channels) for count in joined]
        costs += self._rotate() + self._attend(model.text_tokens) + elementwise(rows * channels)  # the image's part
        costs += linear(rows, channels, channels)
        if second:
            costs += elementwise(rows * channels, 2)  # scaled and shifted once more
            costs += self._project(rows, self.batch * self.keys) + self._attend(0)
            costs += linear(rows, channels, channels) + self._gate(rows)
        costs += self._gate(rows) + self._scale(rows) + self._mlp(rows) + self._gate(rows)
        if ends:
            return costs
        costs += elementwise(text * channels) + linear(text, channels, channels)
        return costs + self._gate(text) + self._scale(text) + self._mlp(text) + self._gate(text)

    def single_block(self) -> Costs:
        """Attention and an MLP side by side, over image and text in one sequence."""
        channels, text = self.model.channels, self.model.text_tokens
        rows, keys = self.batch * (self.tokens + text), self.batch * (self.keys + text)
        side = linear(rows, channels, 4 * channels) + elementwise(4 * rows * channels)
        joined = [kernel(2 * 5 * rows * channels), *linear(rows, 5 * channels, channels)]
        attention = self._project(rows, keys) + self._rotate() + self._attend(text)
        return self.modulate(rows, 3) + side + attention + joined + self._gate(rows)

    def _project(self, rows: int, keys: int) -> Costs:
        """Queries of ``rows`` tokens, keys and values of ``keys``; norms of the former two."""
        channels = self.model.channels
        norms = elementwise(rows * channels) + elementwise(keys * channels) if self.model.normed else []
        return linear(rows, channels, channels) + 2 * linear(keys, channels, channels) + norms

    def _attend(self, text: int) -> Costs:
        return attention_costs(self.batch, self.tokens + text, self.keys + text, self.model.channels)

    def _rotate(self) -> Costs:
        """Count the rotary embedding of queries and keys, nine kernels each."""
        model = self.model
        if not model.rotary:
            return []
        costs: Costs = []
        for count in (self.tokens, self.keys):
            entries = self.batch * (count + model.text_tokens) * model.channels
            # Both halves apart, one negated, joined; two casts, two products, a sum, and the cast back.
            costs += [kernel(halves * entries) for halves in (2, 1, 2, 3, 3, 4, 4, 6, 3)]
        if self.keys < self.tokens:  # the rows of its sines and cosines that are left
            costs += 2 * [kernel(2 * FULL // HALF * (self.keys + model.text_tokens) * model.head_channels)]
        return costs

    def _scale(self, rows: int) -> Costs:
        """A norm, then what it gives scaled and shifted."""
        entries = rows * self.model.channels
        return [*elementwise(entries, 3), *elementwise(self.batch * self.model.channels)]

    def _gate(self, rows: int) -> Costs:
        """Scaled by a gate, and added to the residual."""
        return [*elementwise(rows * self.model.channels), add_kernel(rows * self.model.channels)]

    def _mlp(self, rows: int) -> Costs:
        channels, wide = self.model.channels, 4 * self.model.channels
        return linear(rows, channels, wide) + elementwise(rows * wide) + linear(rows, wide, channels)


def _side(pixels: int) -> int:
    return pixels // 8 // PATCH
