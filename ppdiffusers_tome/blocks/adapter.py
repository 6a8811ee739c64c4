"""What must be known of a block class so that ToMe can be attached to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.grid import Grid

if TYPE_CHECKING:
    import paddle

# What a sublayer does, named by the setting that switches its merging on.
ROLES = ATTENTION, CROSS_ATTENTION, MLP = "merge_attn", "merge_crossattn", "merge_mlp"


@dataclass(frozen=True)
class BlockAdapter:
    """A transformer block on a 2-D grid of tokens.

    Classes are named, not imported: a subclass counts, and a release of ppdiffusers that lacks one does no harm.

    Attributes:
        block_class: the block; called with its tokens ``[batch, tokens, channels]`` as first positional argument.
        host_class: the layer around the blocks, called with the picture they work on as first positional argument.
        sublayers: which of the block's sublayers each of ``merge_attn``, ``merge_crossattn`` and ``merge_mlp``
            merges around; each is called with its tokens as first positional argument.
        grid: the grid of tokens, from the host and its input.
        downsample: how many times smaller than the host's input the grid is (a patch size, otherwise 1).
    """

    block_class: str
    host_class: str
    sublayers: Mapping[str, str]
    grid: Callable[[Any, paddle.Tensor], Grid]
    downsample: Callable[[Any], int]
