"""The cost of one call of a UNet, such as SDXL's, on a GPU.

Pictures are square. Knows no Paddle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu_costs import (
    Costs,
    add_kernel,
    attention_costs,
    convolution,
    elementwise,
    kernel,
    linear,
)  # fmt: skip

LATENT_CHANNELS, TEXT_TOKENS, EMBEDDED = 4, 77, 1280
POOLED_AND_SIZES = 1280 + 6 * 256  # channels that SDXL embeds beside the timestep
_RESNETS = 2  # of a level on the way down; one more on the way up

# How many tokens of a grid give keys, by its level and all its tokens; all of them where nothing merges.
Keys = Callable[[int, int], int]


@dataclass(frozen=True)
class Attentions:
    """Equal self-attentions on one grid of ``side`` by ``side`` tokens."""

    level: int
    side: int
    channels: int
    number: int

    @property
    def num_tokens(self) -> int:
        """Of an image."""
        return self.side**2


@dataclass(frozen=True)
class UNet:
    """ppdiffusers' ``UNet2DConditionModel``.

    Attributes:
        channels: by level, the finest first: ``block_out_channels``.
        depths: blocks of each transformer, by level: ``transformer_layers_per_block``, 0 where a level has none.
        middle_depth: the same in the middle.
        text_channels: of a text token: ``cross_attention_dim``.
        embeds_sizes: whether pooled text and sizes are embedded with the timestep, as SDXL does.
    """

    channels: tuple[int, ...]
    depths: tuple[int, ...]
    middle_depth: int
    text_channels: int
    embeds_sizes: bool = False

    def attentions(self, pixels: int) -> list[Attentions]:
        """Return the self-attentions for square images, the finest level first."""
        numbers = [(2 * _RESNETS + 1) * depth for depth in self.depths]
        numbers[-1] += self.middle_depth
        return [
            Attentions(2**index, _side(pixels, index), self.channels[index], number)
            for index, number in enumerate(numbers) if number
        ]  # fmt: skip

    def costs(self, pixels: int, batch: int, keys: Keys) -> Costs:
        """Count the kernels of one call of ``batch`` rows."""
        calls = _Call(self, pixels, batch, keys)
        first, last = self.channels[0], len(self.channels) - 1
        costs = calls.embeddings() + convolution(calls.points(0), LATENT_CHANNELS, first)
        skipped, width = [first], first
        for index, channels in enumerate(self.channels):
            for _ in range(_RESNETS):
                costs += calls.resnet(index, width, channels) + calls.transformer(index, self.depths[index])
                width = channels
                skipped.append(width)
            if index < last:
                costs += convolution(calls.points(index), width, width, stride=2)
                skipped.append(width)
        costs += calls.resnet(last, width, width) + calls.transformer(last, self.middle_depth)
        costs += calls.resnet(last, width, width)
        for index in reversed(range(last + 1)):
            for _ in range(_RESNETS + 1):
                joined = width + skipped.pop()
                costs.append(kernel(2 * calls.points(index) * joined))  # the concatenation
                width = self.channels[index]
                costs += calls.resnet(index, joined, width) + calls.transformer(index, self.depths[index])
            if index:
                finer = calls.points(index - 1)
                costs += [kernel(calls.points(index) * width, finer * width), *convolution(finer, width, width)]
        return costs + elementwise(calls.points(0) * first, 2) + convolution(calls.points(0), first, LATENT_CHANNELS)


@dataclass(frozen=True)
class _Call:
    """The parts of one call of a UNet; level 0 is the finest."""

    unet: UNet
    pixels: int
    batch: int
    keys: Keys

    def points(self, index: int) -> int:
        """Of all images at a level."""
        return self.batch * _side(self.pixels, index) ** 2

    def embeddings(self) -> Costs:
        """Of the timestep, and what is added to it."""
        embedded = self._mlp(self.unet.channels[0])
        if self.unet.embeds_sizes:
            embedded += [*self._mlp(POOLED_AND_SIZES), add_kernel(self.batch * EMBEDDED)]
        return embedded + elementwise(self.batch * EMBEDDED, 12)  # of sines, and the step's number made a tensor

    def _mlp(self, inner: int) -> Costs:
        between = elementwise(self.batch * EMBEDDED)
        return linear(self.batch, inner, EMBEDDED) + between + linear(self.batch, EMBEDDED, EMBEDDED)

    def resnet(self, index: int, inner: int, outer: int) -> Costs:
        """Count two of norm, activation and convolution, and the skip."""
        points = self.points(index)
        entries = points * outer
        embedded = elementwise(self.batch * EMBEDDED) + linear(self.batch, EMBEDDED, outer)
        around = convolution(points, inner, outer, kernel_side=1) if inner != outer else []
        return [
            *elementwise(points * inner, 2), *convolution(points, inner, outer), *embedded, *elementwise(entries),
            *elementwise(entries, 2), *convolution(points, outer, outer), *around, add_kernel(entries),
            *elementwise(entries),
        ]  # fmt: skip

    def transformer(self, index: int, depth: int) -> Costs:
        """Norm, to tokens, its blocks, and back to a image."""
        if not depth:
            return []
        points, channels = self.points(index), self.unet.channels[index]
        entries = points * channels
        there = elementwise(entries, 3) + linear(points, channels, channels)  # a cast, the norm, a copy as tokens
        back = elementwise(entries) + linear(points, channels, channels) + [add_kernel(entries)]
        return there + depth * self._block(index) + back

    def _block(self, index: int) -> Costs:
        """Self-attention, cross-attention and a gated MLP, each with its norm and residual."""
        channels, batch = self.unet.channels[index], self.batch
        tokens = _side(self.pixels, index) ** 2
        keys = self.keys(2**index, tokens)
        rows, entries = batch * tokens, batch * tokens * channels
        norm, scale_and_add = elementwise(entries), [*elementwise(entries), add_kernel(entries)]
        text = 2 * linear(batch * TEXT_TOKENS, self.unet.text_channels, channels, bias=False)
        queries, out = linear(rows, channels, channels, bias=False), linear(rows, channels, channels)
        return [
            *norm, *queries, *(2 * linear(batch * keys, channels, channels, bias=False)),
            *attention_costs(batch, tokens, keys, channels), *out, *scale_and_add,
            *norm, *queries, *text, *attention_costs(batch, tokens, TEXT_TOKENS, channels), *out, *scale_and_add,
            *norm, *linear(rows, channels, 8 * channels), *elementwise(8 * entries),  # both halves, copied apart
            *elementwise(4 * entries), add_kernel(4 * entries), *linear(rows, 4 * channels, channels),
            add_kernel(entries),
        ]  # fmt: skip


def _side(pixels: int, index: int) -> int:
    return pixels // 8 // 2**index
