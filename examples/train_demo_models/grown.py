"""A UNet with one finer level than another that was trained, which begins as that one: see ``train_unet``."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from torch import nn


@torch.no_grad()
def grow(small: UNet2DConditionModel, grown: UNet2DConditionModel) -> None:
    """Take a UNet's weights over into one with the same levels and a finer one before them.

    What leads into and out of the small UNet leads into and out of the finer level. That level's convolutions begin
    as next to nothing and its attention as chance has it, so that the model learns to use what merging merges; between
    the levels pictures are shrunk and enlarged as plain pooling would.

    Args:
        small: its first and second level, and the new first, have the same number of channels.
        grown: has just been made.
    """
    own = grown.state_dict()
    ups = len(small.up_blocks)
    for name, value in small.state_dict().items():
        parts = name.split(".")
        if parts[0] == "down_blocks":
            parts[1] = str(int(parts[1]) + 1)
        own[".".join(parts)].copy_(value)
    finest_down, finest_up = grown.down_blocks[0], grown.up_blocks[ups]
    _as_pooling(finest_down.downsamplers[0].conv)
    _as_nothing_but(grown.up_blocks[ups - 1].upsamplers[0].conv)
    for resnet in (*finest_down.resnets, *finest_up.resnets):
        nn.init.zeros_(resnet.conv2.weight)
        nn.init.zeros_(resnet.conv2.bias)
    for resnet in finest_up.resnets:  # what comes from below passes, what comes from beside is learned
        _as_nothing_but(resnet.conv_shortcut)


@torch.no_grad()
def _as_nothing_but(convolution: nn.Conv2d) -> None:
    """Pass each output channel the input channel of its number."""
    nn.init.zeros_(convolution.weight)
    nn.init.zeros_(convolution.bias)
    middle = convolution.kernel_size[0] // 2
    for channel in range(convolution.out_channels):
        convolution.weight[channel, channel, middle, middle] = 1.0


@torch.no_grad()
def _as_pooling(convolution: nn.Conv2d) -> None:
    """Each channel's mean over squares of 2x2, for a kernel of 3x3 that moves by two from one before the border."""
    nn.init.zeros_(convolution.weight)
    nn.init.zeros_(convolution.bias)
    for channel in range(convolution.out_channels):
        convolution.weight[channel, channel, 1:, 1:] = 0.25


def finest_blocks(model: nn.Module) -> list[nn.Module]:
    """Of a UNet the two at its finest level, of a ControlNet the one."""
    ups = list(getattr(model, "up_blocks", []))
    return [model.down_blocks[0], *ups[-1:]]


class CheapFinestLevel:
    """While in force, the finest level's self-attention sees windows alone, and perhaps convolutions are passed by.

    Over 4,096 tokens attention takes most of a step's time, and convolutions as long again as all that is left. A
    level that learns its attention first leans on it later, and learns it several times as fast.
    """

    def __init__(self, models: Iterable[nn.Module], window: int, *, asleep: bool) -> None:
        """Begin.

        Args:
            models: UNets, and ControlNets for them; their finest level has attention.
            window: side in tokens, which divides the side of the latents; 0 changes nothing.
            asleep: pass by the convolutions that ``grow`` left at zero. One that has learned is part of what the model
                does, and stays.
        """
        self._changed: list[nn.Module] = []
        for block in (block for model in models if window for block in finest_blocks(model)):
            for resnet in block.resnets:
                if asleep and not resnet.conv2.weight.any():
                    self._replace(resnet, _shortcut_alone)
            for transformer in block.attentions:
                for layer in transformer.transformer_blocks:
                    layer.attn1.window = window
                    self._replace(layer.attn1, _within_windows)

    def _replace(self, module: nn.Module, forward: Any) -> None:
        module.forward = MethodType(forward, module)
        self._changed.append(module)

    def end(self) -> None:
        for module in self._changed:
            del module.forward
        self._changed.clear()


def _shortcut_alone(self: ResnetBlock2D, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden if self.conv_shortcut is None else self.conv_shortcut(hidden)


def _within_windows(self: Attention, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """``[batch, height * width, channels]`` of a square, attended to within windows that do not overlap."""
    batch, tokens, channels = hidden.shape
    side, window = int(tokens**0.5), self.window
    count = side // window
    apart = hidden.view(batch, count, window, count, window, channels).transpose(2, 3)
    attended = Attention.forward(self, apart.reshape(batch * count**2, window**2, channels))
    return attended.view(batch, count, count, window, window, channels).transpose(2, 3).reshape(hidden.shape)
