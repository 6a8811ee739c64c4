"""Descriptions of block classes in which tokens can merge."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.merging.grid import Grid

# The roles of merge points, named by the settings that enable them.
ROLES = ATTENTION, CROSS_ATTENTION, MLP = "merge_attn", "merge_crossattn", "merge_mlp"
# Where the tokens of a text are in a sequence, beside the block's own; they never merge.
FIRST, LAST = "first", "last"
# Layers of ppdiffusers' ``Attention``: all that get its tokens, those of keys and values, and the last one.
PROJECTIONS, KEYS, OUTPUT = ("to_q", "to_k", "to_v"), ("to_k", "to_v"), "to_out.0"
# Its norms of the image and of a text, to whose outputs the rotary embedding is applied.
NORMS, TEXT_NORMS = ("norm_q", "norm_k"), ("norm_added_q", "norm_added_k")


@dataclass(frozen=True)
class MergePoint:
    """A layer of a block that runs on fewer tokens."""

    layer: str  # its path in the block; "" for the block itself
    # True where tokens merge at ``PROJECTIONS`` and are unmerged after ``OUTPUT``, not around the layer.
    merges_inside: bool = False
    text: str = ""  # FIRST or LAST where the input, or the sequence in attention, may also hold a text's tokens
    rotary: str = ""  # the keyword of the rotary embedding that attention applies after ``norm_q`` and ``norm_k``
    mask: str = ""  # the keyword of the mask of attention
    prepares_mask: bool = False  # True for attention that prepares its mask with ``prepare_attention_mask``

    @property
    def text_first(self) -> bool:
        """True where a text's tokens precede the block's own."""
        return self.text == FIRST

    def list_inner_layers(self, keeps_queries: bool) -> tuple[str, ...]:
        """Return the names of layers in attention where tokens merge."""
        if keeps_queries:
            return KEYS
        return (*PROJECTIONS, OUTPUT) if self.merges_inside else ()

    def join_path(self, name: str) -> str:
        """Return the path in the block of a layer of this one."""
        return f"{self.layer}.{name}".lstrip(".")


@dataclass(frozen=True)
class UNetParts:
    """The names of a UNet's parts, and where its resolution changes."""

    down: str  # a list of blocks
    middle: str
    up: str  # a list of blocks
    halves_at_start: bool = False  # True where a block on the way down halves its input, not its output
    # How many times smaller than its input the UNet's first blocks work, from the UNet.
    patch: Callable[[Layer], int] = lambda unet: 1


# The names of ppdiffusers and of OpenAI.
UNETS = (UNetParts("down_blocks", "mid_block", "up_blocks"), UNetParts("input_blocks", "middle_block", "output_blocks"))


def patch_size(parent: Layer) -> int:
    """Return the patch size in a model's config."""
    return parent.config.patch_size


@dataclass(frozen=True)
class BlockAdapter:
    """The description of a class of transformer blocks; add a model here.

    Classes are named, not imported, so subclasses match, and releases of ppdiffusers may lack a class.

    Attributes:
        block_class: the block; its first argument is its tokens, ``[batch, tokens, channels]`` or ``[batch, channels,
            (frames,) height, width]``.
        parent_classes: classes of the layer around such blocks; blocks elsewhere never merge.
        points: of each of ``merge_attn``, ``merge_crossattn`` and ``merge_mlp``, in the order in which they run.
        grid: the grid of tokens, from the parent and the inputs of its ``grid_layer``, or None where they describe
            none. By default the latent is ``[..., height, width]``, ``downsample`` times larger.
        frames_axis: of that latent, where attention is over all frames; None where it is within one image or frame.
        frames_patch: how many frames of the latent are one of the grid, from the parent.
        block_is_parent: True where the block itself gets the latent; ``parent_classes`` then contain such blocks.
        grid_layer: path in the parent of the layer that gets the latent; "" for the parent itself.
        grid_inputs: the inputs of that layer that describe the grid, by position or name.
        grid_from_values: True where their values describe the grid, not their shapes. Each change of them is read once,
            which waits for the device.
        downsample: how many times smaller than the latent the grid is (a patch size, otherwise 1), from the parent.
        unets: the UNets that may contain such blocks and determine their levels; elsewhere the level is 1.
        prefix: how many tokens precede the grid, of one frame, from the arguments of ``grid``; they never merge.
        max_timestep: the timestep of pure noise in such models.
        outputs: the arguments, by position or name, whose new values a block returns, in that order.
        can_merge: False for a block of the class in which tokens cannot merge.
    """

    block_class: str
    parent_classes: tuple[str, ...]
    points: Mapping[str, tuple[MergePoint, ...]]
    grid: Callable[..., Grid | None] | None = None
    frames_axis: int | None = None
    frames_patch: Callable[[Layer], int] = lambda parent: 1
    block_is_parent: bool = False
    grid_layer: str = ""
    grid_inputs: tuple[int | str, ...] = (0,)
    grid_from_values: bool = False
    downsample: Callable[[Layer], int] = lambda parent: 1
    unets: tuple[UNetParts, ...] = UNETS
    prefix: Callable[..., int] = lambda parent, *inputs: 0
    max_timestep: float = 1000
    outputs: tuple[int | str, ...] = (0,)
    can_merge: Callable[[Layer], bool] = lambda block: True

    def find_grid(self, parent: Layer, *inputs: Any) -> Grid | None:
        """Return the grid of tokens, or None where the inputs describe none."""
        if self.grid is not None:
            return self.grid(parent, *inputs)
        shape, patch = inputs[0].shape, self.downsample(parent)
        frames = 1 if self.frames_axis is None else shape[self.frames_axis] // self.frames_patch(parent)
        return Grid(shape[-2] // patch, shape[-1] // patch, frames)
