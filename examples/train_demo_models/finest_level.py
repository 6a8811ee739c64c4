"""A finest level for a trained UNet, cheap while it learns (see ``train_unet``)."""

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
def add_finest_level(small: UNet2DConditionModel, large: UNet2DConditionModel) -> None:
    """Copy a UNet's weights into one with an additional finest level.

    The input and output layers of the small UNet become those of the finest level. Its residual blocks start as
    shortcuts and its attention with random weights, so that the model learns to use the attention, which is where
    tokens merge. The layers between the two finest levels start as plain pooling and plain enlarging.

    Args:
        small: its first and second level, and the new finest level, have the same number of channels.
        large: with initial weights.
    """
    weights = large.state_dict()
    ups = len(small.up_blocks)
    for name, value in small.state_dict().items():
        parts = name.split(".")
        if parts[0] == "down_blocks":
            parts[1] = str(int(parts[1]) + 1)
        weights[".".join(parts)].copy_(value)
    finest_down, finest_up = large.down_blocks[0], large.up_blocks[ups]
    init_pooling(finest_down.downsamplers[0].conv)
    init_identity(large.up_blocks[ups - 1].upsamplers[0].conv)
    for resnet in (*finest_down.resnets, *finest_up.resnets):
        nn.init.zeros_(resnet.conv2.weight)
        nn.init.zeros_(resnet.conv2.bias)
    for resnet in finest_up.resnets:  # passes the coarser level's output; the use of the skip connection is learned
        init_identity(resnet.conv_shortcut)


@torch.no_grad()
def init_identity(convolution: nn.Conv2d) -> None:
    """Pass each output channel the input channel of the same number."""
    nn.init.zeros_(convolution.weight)
    nn.init.zeros_(convolution.bias)
    middle = convolution.kernel_size[0] // 2
    for channel in range(convolution.out_channels):
        convolution.weight[channel, channel, middle, middle] = 1.0


@torch.no_grad()
def init_pooling(convolution: nn.Conv2d) -> None:
    """Average each channel over 2x2 squares; the kernel is 3x3, stride 2, padding 1."""
    nn.init.zeros_(convolution.weight)
    nn.init.zeros_(convolution.bias)
    for channel in range(convolution.out_channels):
        convolution.weight[channel, channel, 1:, 1:] = 0.25


def find_finest_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the finest level's blocks: a UNet's two, a ControlNet's one."""
    ups = list(getattr(model, "up_blocks", []))
    return [model.down_blocks[0], *ups[-1:]]


def hold_coarser_levels(model: nn.Module, unet: UNet2DConditionModel) -> list[Any]:
    """Let only a UNet's finest level learn, until the returned hooks are removed.

    Small batches would blur what the coarser levels have learned from large ones.

    Args:
        model: all that is trained.
        unet: its UNet, of ``add_finest_level``.
    """
    learning = (
        unet.conv_in, unet.conv_norm_out, unet.conv_out, unet.up_blocks[-2].upsamplers[0], *find_finest_blocks(unet)
    )  # fmt: skip
    learned = {parameter for layer in learning for parameter in layer.parameters()}
    return [each.register_hook(torch.zeros_like) for each in model.parameters() if each not in learned]


class CheapFinestLevel:
    """Self-attention in windows at the finest level, and optionally no untrained convolutions.

    Attention over 4,096 tokens takes most of a step's time, and the convolutions as long as everything else. A level
    that learns its attention first relies on it later, and learns it several times as fast.
    """

    def __init__(self, models: Iterable[nn.Module], window: int, *, skip_convolutions: bool) -> None:
        """Change the models until ``remove`` is called.

        Args:
            models: UNets, and ControlNets for them; their finest level has attention.
            window: side in tokens, which divides the side of the latents; 0 changes nothing.
            skip_convolutions: skip those that ``add_finest_level`` set to zero, unless they have learned since.
        """
        self._modules: list[nn.Module] = []
        for block in (block for model in models if window for block in find_finest_blocks(model)):
            for resnet in block.resnets:
                if skip_convolutions and not resnet.conv2.weight.any():
                    self._replace_forward(resnet, _run_shortcut)
            for transformer in block.attentions:
                for layer in transformer.transformer_blocks:
                    layer.attn1.window = window
                    self._replace_forward(layer.attn1, _attend_in_windows)

    def _replace_forward(self, module: nn.Module, forward: Any) -> None:
        module.forward = MethodType(forward, module)
        self._modules.append(module)

    def remove(self) -> None:
        for module in self._modules:
            del module.forward
        self._modules.clear()


def _run_shortcut(self: ResnetBlock2D, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden if self.conv_shortcut is None else self.conv_shortcut(hidden)


def _attend_in_windows(self: Attention, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Attend within windows that do not overlap; ``[batch, side * side, channels]``."""
    batch, tokens, channels = hidden.shape
    side, window = int(tokens**0.5), self.window
    count = side // window
    windows = hidden.view(batch, count, window, count, window, channels).transpose(2, 3)
    attended = Attention.forward(self, windows.reshape(batch * count**2, window**2, channels))
    return attended.view(batch, count, count, window, window, channels).transpose(2, 3).reshape(hidden.shape)
