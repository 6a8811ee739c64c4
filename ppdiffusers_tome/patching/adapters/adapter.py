"""What must be known of a block class so that ToMe can be attached to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.grid import Grid

if TYPE_CHECKING:
    import paddle
    from paddle.nn import Layer

# What a section does, named by the setting that switches its merging on.
ROLES = ATTENTION, CROSS_ATTENTION, MLP = "merge_attn", "merge_crossattn", "merge_mlp"


# Where in a sequence tokens stand that are not the block's own, such as a text's; they stay as they are.
FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class Section:
    """A stretch of a block that runs on merged tokens. Layers are named by their paths in the block.

    Attributes:
        enter: tokens merge as they enter these layers, as first positional input.
        leave: what this layer returns (the first, where it returns several) is unmerged.
        after: tokens merge as they leave the ``enter`` layers instead: the way in where the next layer gets them by
            keyword, which Paddle 2.6 does not show to hooks.
        keyword: tokens merge in this keyword of the call of the one layer, which needs Paddle 3.
        others: ``FIRST`` or ``LAST`` where more tokens than the block's own may be in what enters, or in the sequence
            that attention makes of them and its other input.
        keys: of self-attention, the layers that make keys and values from its tokens, given as first positional input.
        rotary: the keyword that brings attention a rotary embedding, to be applied behind ``norm_q`` and ``norm_k``.
        mask: the keyword by which attention takes a mask.
    """

    enter: tuple[str, ...]
    leave: str
    after: bool = False
    keyword: str = ""
    others: str = ""
    keys: tuple[str, ...] = ()
    rotary: str = ""
    mask: str = ""

    @property
    def text_first(self) -> bool:
        """Whether tokens that are not the block's own stand before them."""
        return self.others == FIRST

    @property
    def is_one_layer(self) -> bool:
        """Whether tokens merge around a layer that can be called on its own."""
        return self.enter == (self.leave,) and not self.after and not self.keyword


def around(layer: str, *, keys: tuple[str, ...] = (), **others: Any) -> Section:
    """The section that is one layer, called with its tokens and returning them; ``others`` as in ``Section``."""
    return Section((layer,), layer, keys=tuple(f"{layer}.{name}" for name in keys), **others)


def keyword_attention(layer: str, *, keys: bool = False, **others: Any) -> Section:
    """Attention that is called with its tokens as ``hidden_states``; ``others`` as in ``Section``."""
    return around(layer, keys=KEYS if keys else (), keyword="hidden_states", **others)


# How ppdiffusers' ``Attention`` calls the layers that make its keys and values.
KEYS = ("to_k", "to_v")


def grid_from_latent(host: Layer, latent: paddle.Tensor) -> Grid:
    """The grid of ``[..., height, width]``, one token a pixel."""
    return Grid(*latent.shape[-2:])


def no_prefix(host: Layer, *given: Any) -> int:
    """The grid's tokens are all there are."""
    return 0


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
    """A transformer block on a grid of tokens, of a picture or of all frames of a video.

    Classes are named, not imported: a subclass counts, and a release of ppdiffusers that lacks one does no harm.

    Attributes:
        block_class: the block; its tokens are ``[batch, tokens, channels]`` or ``[batch, channels, height, width]``.
        inside: classes of the layer around such blocks, their host. Elsewhere the class is left alone.
        sections: what each of ``merge_attn``, ``merge_crossattn`` and ``merge_mlp`` merges around, in the order in
            which they run.
        grid: the grid of tokens, from the host and what its layer at ``latent`` is given; None where that is no grid.
        own_host: the block itself is called with the latent; ``inside`` only says where to look for it.
        latent: path in the host of the layer that is called with the latent; "" for the host itself.
        given: the inputs of that layer that tell the grid, by position or name.
        by_value: the grid is told by the values of those, not by their shapes; they are read once each time they are
            others, which waits for the device.
        metric: path in the block of the layer that is called with the block's tokens before anything is done to
            them, as first positional input; "" for the block itself.
        downsample: how many times smaller than the latent the grid is (a patch size, otherwise 1), from the host.
        unets: the UNets that such blocks may be in, which tell their levels; elsewhere it is 1.
        prefix: how many tokens stand before those of the grid, from what ``grid`` gets; they never merge.
        frames: whether the grid may have several, so that a stride over them makes sense.
        noisiest: the timestep that such models are given for pure noise.
        usable: False for a block of the class in which tokens cannot merge.
    """

    block_class: str
    inside: tuple[str, ...]
    sections: Mapping[str, tuple[Section, ...]]
    grid: Callable[..., Grid | None] = grid_from_latent
    block_is_parent: bool = False
    latent: str = ""
    given: tuple[int | str, ...] = (0,)
    by_value: bool = False
    metric: str = ""
    downsample: Callable[[Layer], int] = lambda host: 1
    unets: tuple[UNetParts, ...] = UNETS
    prefix: Callable[..., int] = no_prefix
    frames: bool = False
    max_timestep: float = 1000
    usable: Callable[[Layer], bool] = lambda block: True


def all_sections(adapter: BlockAdapter) -> list[Section]:
    """Every section, of all roles."""
    return [section for sections in adapter.sections.values() for section in sections]
