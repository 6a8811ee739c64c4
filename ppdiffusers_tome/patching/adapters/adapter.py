"""Descriptions of block classes in which tokens can merge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.grid import Grid

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer

# The roles of merge points, named by the settings that enable them.
ROLES = ATTENTION, CROSS_ATTENTION, MLP = "merge_attn", "merge_crossattn", "merge_mlp"
# Where the tokens of a text are in a sequence, beside the block's own; they never merge.
FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class MergePoint:
    """A part of a block on fewer tokens; layers are paths.

    Attributes:
        enter: layers whose first argument is merged.
        leave: the layer whose output (the first of several) is unmerged.
        keys: of self-attention, the layers that make keys and values from its tokens, given as first argument.
        text: ``FIRST`` or ``LAST`` where the input, or the sequence in attention, may also hold a text's tokens.
        rotary: the keyword of the rotary embedding that attention applies after ``norm_q`` and ``norm_k``.
        mask: the keyword of the mask of attention.
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
        """True where tokens merge around one layer, not inside of it."""
        return self.enter == (self.leave,)

    @property
    def has_prepared_mask(self) -> bool:
        """True for attention that prepares its mask with ``prepare_attention_mask``."""
        return not self.is_one_layer or not (self.text or self.rotary or self.mask)

    @property
    def layer(self) -> str:
        """The path of the layer that is, or contains, the point."""
        return self.leave if self.is_one_layer else self.enter[0].rpartition(".")[0]

    def list_required_layers(self, keeps_queries: bool) -> tuple[str, ...]:
        """Return the paths of the layers that this point requires."""
        return (self.layer, *self.keys) if keeps_queries else (self.layer, *self.enter, self.leave)


def merge_around(layer: str, *, keys: bool = False, text: str = "", rotary: str = "", mask: str = "") -> MergePoint:
    """Build a point of one layer; ``keys``: it is ppdiffusers' ``Attention``."""
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
    """The description of a class of transformer blocks; add a model here.

    Classes are named, not imported, so subclasses match, and releases of ppdiffusers may lack a class.

    Attributes:
        block_class: the block; its tokens are ``[batch, tokens, channels]`` or ``[batch, channels, height, width]``.
        parent_classes: classes of the layer around such blocks; blocks elsewhere never merge.
        points: of each of ``merge_attn``, ``merge_crossattn`` and ``merge_mlp``, in the order in which they run.
        grid: the grid of tokens, from the parent and the inputs of its ``grid_layer``; None where they describe none.
        block_is_parent: True where the block itself gets the latent; ``parent_classes`` then contain such blocks.
        grid_layer: path in the parent of the layer that gets the latent; "" for the parent itself.
        grid_inputs: the inputs of that layer that describe the grid, by position or name.
        grid_from_values: True where their values describe the grid, not their shapes. Each change of them is read once,
            which waits for the device.
        tokens_layer: path in the block of the layer whose first argument is the block's unchanged tokens; "" for the
            block itself.
        downsample: how many times smaller than the latent the grid is (a patch size, otherwise 1), from the parent.
        unets: the UNets that may contain such blocks and determine their levels; elsewhere the level is 1.
        prefix: the number of tokens that precede the grid, from the arguments of ``grid``; they never merge.
        frames: True where the grid may have several frames.
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
