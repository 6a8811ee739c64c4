"""Descriptions of block classes in which tokens can merge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.grid import Grid

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer

# What a merge point does, named by the setting that turns it on.
ROLES = ATTENTION, CROSS_ATTENTION, MLP = "merge_attn", "merge_crossattn", "merge_mlp"
# Where in a sequence the tokens of a text stand, beside the block's own; they never merge.
FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class MergePoint:
    """A stretch of a block that runs on fewer tokens. Layers are named by their paths in the block.

    Attributes:
        enter: tokens merge as they enter these layers, as first argument.
        leave: the output of this layer (the first, where it has several) is unmerged.
        keys: of self-attention, the layers that make keys and values from its tokens, given as first argument.
        text: ``FIRST`` or ``LAST`` where a text's tokens may stand beside the block's own in what enters, or in the
            sequence that attention makes of them and its other input.
        rotary: the keyword that brings attention a rotary embedding, to be applied behind ``norm_q`` and ``norm_k``.
        mask: the keyword by which attention takes a mask.
    """

    enter: tuple[str, ...]
    leave: str
    keys: tuple[str, ...] = ()
    text: str = ""
    rotary: str = ""
    mask: str = ""

    @property
    def text_first(self) -> bool:
        """True where a text's tokens precede the block's own."""
        return self.text == FIRST

    @property
    def is_one_layer(self) -> bool:
        """True where tokens merge around one layer; otherwise around some of the layers inside of one."""
        return self.enter == (self.leave,)

    @property
    def has_prepared_mask(self) -> bool:
        """True for attention that asks ``prepare_attention_mask`` for its mask: that of images, or of plain tokens."""
        return not self.is_one_layer or not (self.text or self.rotary or self.mask)

    @property
    def layer(self) -> str:
        """The path of the layer that the point is, or that holds its layers."""
        return self.leave if self.is_one_layer else self.enter[0].rpartition(".")[0]

    def needed_layers(self, keeps_queries: bool) -> tuple[str, ...]:
        """Return the paths of the layers that have to be in a block for this point to merge."""
        return (self.layer, *self.keys) if keeps_queries else (self.layer, *self.enter, self.leave)


def merge_around(layer: str, *, keys: bool = False, text: str = "", rotary: str = "", mask: str = "") -> MergePoint:
    """Describe a point that is one layer, called with its tokens; ``keys``: it is ppdiffusers' ``Attention``."""
    names = tuple(f"{layer}.{name}" for name in KEYS) if keys else ()
    return MergePoint((layer,), layer, names, text, rotary, mask)


# The layers of ppdiffusers' ``Attention`` that make its keys and values.
KEYS = ("to_k", "to_v")


def grid_from_latent(parent: Layer, latent: paddle.Tensor) -> Grid:
    """Return the grid of ``[..., height, width]``, one token a pixel."""
    return Grid(*latent.shape[-2:])


def has_no_prefix(parent: Layer, *inputs: Any) -> int:
    """Return 0: no tokens precede those of the grid."""
    return 0


@dataclass(frozen=True)
class UNetParts:
    """The names of a UNet's parts, and where its resolution changes.

    Attributes:
        down, middle, up: names of the parts; the first and the last are lists of blocks.
        halves_at_start: True where a block on the way down halves its input, not its output.
        patch: how many times smaller than its input the UNet's first blocks work, from the UNet.
    """

    down: str
    middle: str
    up: str
    halves_at_start: bool = False
    patch: Callable[[Layer], int] = lambda unet: 1

    @property
    def names(self) -> tuple[str, str, str]:
        """The names in the order in which the parts run."""
        return self.down, self.middle, self.up


# The names of ppdiffusers and of OpenAI.
UNETS = (
    UNetParts("down_blocks", "mid_block", "up_blocks"),
    UNetParts("input_blocks", "middle_block", "output_blocks"),
)


@dataclass(frozen=True)
class BlockAdapter:
    """A class of transformer blocks on a grid of tokens: the place to add a model.

    Classes are named, not imported: a subclass counts, and a release of ppdiffusers that lacks one does no harm.

    Attributes:
        block_class: the block; its tokens are ``[batch, tokens, channels]`` or ``[batch, channels, height, width]``.
        parent_classes: classes of the layer around such blocks. Elsewhere the block class is left alone.
        points: where each of ``merge_attn``, ``merge_crossattn`` and ``merge_mlp`` merges, in the order in which the
            points run.
        grid: the grid of tokens, from the parent and the inputs of its ``grid_layer``; None where they describe none.
        block_is_parent: True where the block itself gets the latent; ``parent_classes`` then say where to look for it.
        grid_layer: path in the parent of the layer that gets the latent; "" for the parent itself.
        grid_inputs: the inputs of that layer that describe the grid, by position or name.
        grid_from_values: True where the values of those describe the grid, not their shapes; they are read once each
            time they change, which waits for the device.
        tokens_layer: path in the block of the layer that gets the block's tokens before anything is done to them, as
            first argument; "" for the block itself.
        downsample: how many times smaller than the latent the grid is (a patch size, otherwise 1), from the parent.
        unets: the UNets that such blocks may be in, which determine their levels; elsewhere the level is 1.
        prefix: how many tokens precede those of the grid, from the arguments of ``grid``; they never merge.
        frames: True where the grid may have several frames, so that a stride over them makes sense.
        max_timestep: the timestep of pure noise in such models.
        can_merge: False for a block of the class in which tokens cannot merge.
    """

    block_class: str
    parent_classes: tuple[str, ...]
    points: Mapping[str, tuple[MergePoint, ...]]
    grid: Callable[..., Grid | None] = grid_from_latent
    block_is_parent: bool = False
    grid_layer: str = ""
    grid_inputs: tuple[int | str, ...] = (0,)
    grid_from_values: bool = False
    tokens_layer: str = ""
    downsample: Callable[[Layer], int] = lambda parent: 1
    unets: tuple[UNetParts, ...] = UNETS
    prefix: Callable[..., int] = has_no_prefix
    frames: bool = False
    max_timestep: float = 1000
    can_merge: Callable[[Layer], bool] = lambda block: True

    @property
    def all_points(self) -> list[MergePoint]:
        """The points of all roles."""
        return [point for points in self.points.values() for point in points]
