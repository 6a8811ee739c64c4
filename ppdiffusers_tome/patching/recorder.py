"""Records of the groups of merged tokens, by block and call.

Each record waits for the device, so do not record while you time.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import NothingToMergeError, ToMeValueError
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.state.block_call import WATCHERS, BlockCall


@dataclass(frozen=True)
class MergingBlock:
    """A block that ToMe is applied to.

    Attributes:
        denoiser: the model's name in the pipeline (``unet``, ``controlnet``); "" for a model.
        path: of the block in its model.
        level: how many times smaller than the latent the block's grid is.
    """

    denoiser: str
    path: str
    level: int


@dataclass(frozen=True, eq=False)
class MergeRecord:
    """The merging of one image in one call of a block.

    Attributes:
        block: the block.
        grid: its tokens, numbered row by row.
        call: number of the denoiser's call, from 0. Most pipelines call it once a denoising step.
        timestep: of the call; None where the denoiser has none, or where its call does not show it.
        groups: int32 ``[tokens of the grid]``, the number of each token's group, from 0; a token that did not merge is
            a group alone. Tokens before the grid are omitted.
    """

    block: MergingBlock
    grid: Grid
    call: int
    timestep: float | None
    groups: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """int64 ``[groups]``, the number of tokens in each group."""
        return np.bincount(self.groups)

    @property
    def num_merged(self) -> int:
        """The number of tokens of the grid minus that of its groups."""
        return len(self.groups) - len(self.sizes)

    @property
    def merged(self) -> np.ndarray:
        """bool ``[(frames,) height, width]``, True where a token shares its group."""
        return (self.sizes[self.groups] > 1).reshape(self.grid.shape)


def list_merging_blocks(model_or_pipe: Any) -> list[MergingBlock]:
    """Return every block that ToMe is applied to, denoiser by denoiser.

    Raises:
        NothingToMergeError: ToMe is not applied.
    """
    found = []
    for name, model in list_models(model_or_pipe):
        levels = {id(block.block): block.level for block in find_blocks(model)}
        attached = ((path, id(layer)) for path, layer, _ in list_attached_blocks(model))
        found += [MergingBlock(name, path, levels[layer]) for path, layer in attached if layer in levels]
    if not found:
        raise NothingToMergeError(
            f"ToMe is not applied to this {type(model_or_pipe).__name__}, so there is nothing to record; "
            "call apply_tome first"
        )
    return found


@contextmanager
def record_merging(model_or_pipe: Any, *, image: int = -1) -> Iterator[list[MergeRecord]]:
    """Record the merging of tokens in this context; recordings may nest.

    Blocks that run unmerged have no record, nor does ``todo``, which makes no groups.

    Args:
        model_or_pipe: a pipeline or model to which ToMe is applied.
        image: index in the batch. With classifier-free guidance the unprompted images are the first of the batch, so
            -1 is prompted; in a DiTPipeline they are the last, so 0 is.

    Yields:
        The records, in the order of execution; the list grows with every call.

    Raises:
        NothingToMergeError: ToMe is not applied.
        ToMeValueError: a call has no such image.

    Example:
        >>> pipe = pipe.apply_tome(ratio=0.5)
        >>> with record_merging(pipe) as records:
        ...     image = pipe("a cat on a table")
        >>> records[0].block.path, records[0].num_merged / records[0].grid.num_tokens
        ('down_blocks.0.attentions.0.transformer_blocks.0', 0.5)
    """
    list_merging_blocks(model_or_pipe)
    # All blocks, as settings may change meanwhile.
    blocks = {
        id(block.block): (MergingBlock(name, block.path, block.level), model)
        for name, model in list_models(model_or_pipe) for block in find_blocks(model)
    }  # fmt: skip
    models = {id(model): model for _, model in blocks.values()}.values()
    records: list[MergeRecord] = []
    numbers: dict[int, Iterator[int]] = defaultdict(itertools.count)
    calls: dict[tuple[int, int], int] = {}  # by thread, as threads may share a model, and each has its own call

    def count_call(model: Any, inputs: Any) -> Any:
        calls[threading.get_ident(), id(model)] = next(numbers[id(model)])

    def record(block: BlockCall) -> None:
        matching, layout, timestep = block.reduction, block.layout, block.call.timestep
        # Without comparison no groups exist, a program that is being traced has no values, and a backward pass merges
        # what merged before.
        is_recorded = id(block.layer) in blocks and paddle.in_dynamic_mode() and not CALL_STACK.is_recomputing
        if not isinstance(matching, Matching) or not is_recorded:
            return
        owners = matching.owner.reshape([-1, layout.num_tokens])
        if not -owners.shape[0] <= image < owners.shape[0]:
            raise ToMeValueError(f"image={image} must be an index in the batch of {owners.shape[0]} images")
        owner = owners[image].numpy()
        groups = np.unique(owner[layout.prefix :], return_inverse=True)[1].astype(np.int32)
        value = None if timestep is None else float(timestep.reshape([-1])[0])  # of the first image
        merging_block, model = blocks[id(block.layer)]
        call = calls.get((threading.get_ident(), id(model)), 0)
        records.append(MergeRecord(merging_block, layout.grid, call, value, groups))

    hooks = [model.register_forward_pre_hook(count_call) for model in models]
    WATCHERS.append(record)
    try:
        yield records
    finally:
        WATCHERS.remove(record)
        for hook in hooks:
            hook.remove()
