"""Records of the groups of merged tokens, by block and call.

Each record waits for the device, so do not record while you time.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ppdiffusers_tome.errors import NothingToMergeError
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.override import list_overrides
from ppdiffusers_tome.patching.overrides.block import BlockOverride
from ppdiffusers_tome.patching.state.block_call import WATCHERS, BlockCall


@dataclass(frozen=True)
class RecordedBlock:
    """A block that ToMe is applied to."""

    denoiser: str  # the model's name in the pipeline (``unet``, ``controlnet``); "" for a model
    path: str  # in its model
    level: int  # how many times smaller than the latent its grid is


@dataclass(frozen=True, eq=False)
class MergeRecord:
    """The merging of one image in one call of a block."""

    block: RecordedBlock
    grid: Grid  # its tokens, numbered row by row
    call: int  # the number of the denoiser's call, from 0, most often one a step; -1 if ``forward`` is called alone
    timestep: float | None  # None where the denoiser has none, or where its call does not show it
    groups: np.ndarray  # int32 ``[tokens of the grid]``, each token's group, from 0; one that did not merge is alone

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


@contextmanager
def record_merging(model_or_pipe: Any, *, image: int = -1) -> Iterator[list[MergeRecord]]:
    """Record the merging of tokens in this context.

    Blocks that run unmerged have no record, nor does ``todo``, which makes no groups. Calls are counted for one thread;
    record neither training nor a program that is being traced.

    Args:
        model_or_pipe: a pipeline or model to which ToMe is applied.
        image: index in the batch. With classifier-free guidance the unprompted images are the first of the batch, so
            -1 is prompted; in a DiTPipeline they are the last, so 0 is.

    Yields:
        The records, in the order of execution; the list grows with every call.

    Raises:
        NothingToMergeError: ToMe is not applied.
        IndexError: a call has no such image.

    Example:
        >>> pipe = pipe.apply_tome(ratio=0.5)
        >>> with record_merging(pipe) as records:
        ...     image = pipe("a cat on a table")
        >>> records[0].block.path, records[0].num_merged / records[0].grid.num_tokens
        ('down_blocks.0.attentions.0.transformer_blocks.0', 0.5)
    """
    models = list(list_models(model_or_pipe))
    blocks: dict[Any, RecordedBlock] = {
        block.layer: RecordedBlock(name, block.path, block.level)
        for name, model in models for block in find_blocks(model)
        if any(isinstance(override, BlockOverride) for override in list_overrides(block.layer))
    }  # fmt: skip
    if not blocks:
        raise NothingToMergeError(
            f"ToMe is not applied to this {type(model_or_pipe).__name__}, so there is nothing to record; "
            "call apply_tome first"
        )
    records: list[MergeRecord] = []
    num_calls: Counter[str] = Counter()

    def record(block_call: BlockCall) -> None:
        matching, layout, timestep = block_call.reduction, block_call.layout, block_call.call.timestep
        if block_call.layer not in blocks or not isinstance(matching, Matching):  # chosen keys have no groups
            return
        block = blocks[block_call.layer]
        owner = matching.owner.reshape([-1, layout.num_tokens]).numpy()[image]
        groups = np.unique(owner[layout.prefix :], return_inverse=True)[1].astype(np.int32)
        value = None if timestep is None else float(timestep.reshape([-1])[0])  # of the first image
        records.append(MergeRecord(block, layout.grid, num_calls[block.denoiser] - 1, value, groups))

    def count_call(name: str, *_: Any) -> Any:
        num_calls[name] += 1

    hooks = [model.register_forward_pre_hook(partial(count_call, name)) for name, model in models]
    WATCHERS.append(record)
    try:
        yield records
    finally:
        WATCHERS.remove(record)
        for hook in hooks:
            hook.remove()
