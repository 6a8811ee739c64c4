"""What must be known of a block class so that ToMe can be attached to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdiffusers_tome.merging.grid import Grid

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer

# What a section does, named by the setting that switches its merging on.
ROLES = ATTENTION, CROSS_ATTENTION, MLP = "merge_attn", "merge_crossattn", "merge_mlp"


@dataclass(frozen=True)
class Section:
    """A stretch of a block that runs on merged tokens. Layers are named by their paths in the block.

    Attributes:
        enter: tokens merge as they enter these layers, as first positional input.
        leave: what this layer returns (the first, where it returns several) is unmerged.
        after: tokens merge as they leave the ``enter`` layers instead: the way in where the next layer gets them by
            keyword, which Paddle 2.6 does not show to hooks.
        trailing: more tokens may follow the block's own in what enters; they stay as they are.
        keys: of self-attention, the layers that make keys and values from its tokens, given as first positional input.
    """

    enter: tuple[str, ...]
    leave: str
    after: bool = False
    trailing: bool = False
    keys: tuple[str, ...] = ()

    @property
    def is_one_layer(self) -> bool:
        """Whether tokens merge around a layer that can be called on its own."""
        return self.enter == (self.leave,) and not self.after


def around(layer: str, *, keys: tuple[str, ...] = ()) -> Section:
    """The section that is one layer, called with its tokens as first positional input and returning them."""
    return Section((layer,), layer, keys=tuple(f"{layer}.{name}" for name in keys))


# How ppdiffusers' ``Attention`` calls the layers that make its keys and values.
KEYS = ("to_k", "to_v")


def latent_grid(host: Layer, latent: paddle.Tensor) -> Grid:
    """The grid of ``[..., height, width]``, one token a pixel."""
    return Grid(*latent.shape[-2:])


@dataclass(frozen=True)
class UNetParts:
    """How a kind of UNet calls its parts, and where its resolution changes.

    Attributes:
        down, middle, up: names of the parts; the first and the last are lists of blocks.
        halves_at_its_beginning: a block on the way down halves what it gets; otherwise what it hands on.
        patch: how many times smaller than its input the UNet's first blocks work, from the UNet.
    """

    down: str
    middle: str
    up: str
    halves_at_its_beginning: bool = False
    patch: Callable[[Layer], int] = lambda unet: 1

    @property
    def names(self) -> tuple[str, str, str]:
        """In the order in which the parts run."""
        return self.down, self.middle, self.up


# ppdiffusers' way and OpenAI's.
UNETS = (
    UNetParts("down_blocks", "mid_block", "up_blocks"),
    UNetParts("input_blocks", "middle_block", "output_blocks"),
)


@dataclass(frozen=True)
class BlockAdapter:
    """A transformer block on a 2-D grid of tokens.

    Classes are named, not imported: a subclass counts, and a release of ppdiffusers that lacks one does no harm.

    Attributes:
        block_class: the block; its tokens are ``[batch, tokens, channels]`` or ``[batch, channels, height, width]``.
        inside: classes of the layer around such blocks, their host. Elsewhere the class is left alone.
        sections: what each of ``merge_attn``, ``merge_crossattn`` and ``merge_mlp`` merges around.
        grid: the grid of tokens, from the host and its latent.
        own_host: the block itself is called with the latent; ``inside`` only says where to look for it.
        latent: path in the host of the layer that is called with the latent, as first positional input; "" for the
            host itself.
        metric: path in the block of the layer that is called with the block's tokens before anything is done to
            them, as first positional input; "" for the block itself.
        downsample: how many times smaller than the latent the grid is (a patch size, otherwise 1), from the host.
        unets: the UNets that such blocks may be in, which tell their levels; elsewhere it is 1.
        prefix: how many tokens stand before those of the grid, from the host; they never merge.
        noisiest: the timestep that such models are given for pure noise.
        usable: False for a block of the class in which tokens cannot merge.
    """

    block_class: str
    inside: tuple[str, ...]
    sections: Mapping[str, Section]
    grid: Callable[[Layer, paddle.Tensor], Grid] = latent_grid
    own_host: bool = False
    latent: str = ""
    metric: str = ""
    downsample: Callable[[Layer], int] = lambda host: 1
    unets: tuple[UNetParts, ...] = UNETS
    prefix: Callable[[Layer], int] = lambda host: 0
    noisiest: float = 1000
    usable: Callable[[Layer], bool] = lambda block: True
