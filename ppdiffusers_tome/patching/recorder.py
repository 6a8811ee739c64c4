"""Records of the groups of merged tokens, by block and call.

Each record waits for the device, so do not record while you time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle.nn import Layer

from ppdiffusers_tome.errors import NothingToMergeError
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.state.calls import BlockCall


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


def merging_blocks(model_or_pipe: Any) -> list[MergingBlock]:
    """Return every block that ToMe is applied to, denoiser by denoiser.

    Raises:
        NothingToMergeError: ToMe is not applied.
    """
    return [block for recorder in _recorders(model_or_pipe) for block in recorder.blocks.values()]


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

    Example:
        >>> pipe = pipe.apply_tome(ratio=0.5)
        >>> with record_merging(pipe) as records:
        ...     image = pipe("a cat on a table")
        >>> records[0].block.path, records[0].num_merged / records[0].grid.num_tokens
        ('down_blocks.0.attentions.0.transformer_blocks.0', 0.5)
    """
    recorders = _recorders(model_or_pipe, image)
    records: list[MergeRecord] = []
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(recorder.record(records))
        yield records


def _recorders(model_or_pipe: Any, image: int = -1) -> list[_Recorder]:
    models = [(name, model) for name, model in list_models(model_or_pipe) if list_attached_blocks(model)]
    if not models:
        raise NothingToMergeError(
            f"ToMe is not applied to this {type(model_or_pipe).__name__}, so there is nothing to record; "
            "call apply_tome first"
        )
    return [_Recorder(name, model, image) for name, model in models]


class _Recorder:
    """The recorder of the blocks of one denoiser."""

    def __init__(self, name: str, model: Layer, image: int) -> None:
        self._model, self._image = model, image
        levels = {id(block.block): block.level for block in find_blocks(model)}
        found = [entry for entry in list_attached_blocks(model) if id(entry[1]) in levels]
        self.blocks = {id(override): MergingBlock(name, path, levels[id(block)]) for path, block, override in found}
        self._attachments = {id(override.attachment): override.attachment for _, _, override in found}.values()
        self._calls = itertools.count()
        # Threads may share a model, and each has its own call.
        self._thread = threading.local()

    @contextmanager
    def record(self, records: list[MergeRecord]) -> Iterator[None]:
        watching = [(attachment, attachment.watch) for attachment in self._attachments]
        hook: Any = self._begin
        helper = self._model.register_forward_pre_hook(hook)
        for attachment, watch in watching:
            attachment.watch = self._listener(records, watch)
        try:
            yield
        finally:
            for attachment, watch in watching:
                attachment.watch = watch
            helper.remove()

    def _listener(self, records: list[MergeRecord], watch: Any) -> Any:
        def listen(block: BlockCall) -> None:
            if watch is not None:
                watch(block)
            # Without comparison no groups exist, and a program that is being traced has no values.
            matching = block.reduction
            if isinstance(matching, Matching) and id(block.name) in self.blocks and paddle.in_dynamic_mode():
                records.append(self._create_record(block, matching))

        return listen

    def _create_record(self, block: BlockCall, matching: Matching) -> MergeRecord:
        layout = block.layout
        of_image = matching.owner.reshape([-1, layout.num_tokens])[self._image].numpy()
        _, groups = np.unique(of_image[layout.prefix :], return_inverse=True)
        number, timestep = getattr(self._thread, "call", 0), _number(block.call.timestep)
        return MergeRecord(self.blocks[id(block.name)], layout.grid, number, timestep, groups.astype(np.int32))

    def _begin(self, model: Layer, inputs: tuple) -> None:
        self._thread.call = next(self._calls)


def _number(timestep: paddle.Tensor | None) -> float | None:
    """Return a timestep, of the first image, as a number."""
    return None if timestep is None else float(timestep.reshape([-1])[0])
