"""The running calls of a denoiser, a block and a merge point."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.merging.chosen_keys import TokenReduction
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.rotary import Rotation
from ppdiffusers_tome.merging.token_span import TokenSpan
from ppdiffusers_tome.patching.adapters.adapter import MergePoint
from ppdiffusers_tome.patching.paddle_compat import require_eager
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.pipeline_call import Denoising, PipelineCall, SharedValues
from ppdiffusers_tome.patching.state.steps import Step
from ppdiffusers_tome.settings.reducer import Reducer, build_reducer

# Called with every ``BlockCall`` in which tokens merged, of all denoisers.
WATCHERS: list[Callable[[BlockCall], None]] = []


class UnmergeableError(Exception):
    """A merge point whose layer must run on all tokens, for this reason."""


@dataclass(eq=False)
class DenoiserCall:
    """The state that blocks share in one call of their denoiser.

    Attributes:
        pipeline_call: in which it is called, or None.
        is_recomputing: True where a backward pass runs it again.
        latent_shape, conditioning: what identifies the call among those of the previous step.
        timestep: scalar or ``[batch]``; None where the model has none.
        denoising: of the image; None if no setting needs the step, or outside of a pipeline.
        step: of the denoising; None if no setting needs it, or it is unknown.
        progress: of the denoising, like ``step``.
        shared: what it shares with other steps; None where it shares nothing.
        cached: what the cache over steps knows of this call, for itself alone.
        has_skipped: True once the cache over steps skipped a layer.
        layouts: of the tokens of blocks that are on a grid, by the override of the layer that gets their latent.
        is_eager: False while ``to_static`` traces the call.
        records_gradients: True if gradients may be computed; with gradient checkpointing a first run records none.
    """

    state: DenoiserState
    denoiser: Layer
    pipeline_call: PipelineCall | None = None
    is_recomputing: bool = False
    latent_shape: Sequence[int] = ()
    conditioning: Sequence[paddle.Tensor] = ()
    timestep: paddle.Tensor | None = None
    denoising: Denoising | None = None
    step: Step | None = None
    progress: float | None = None
    shared: SharedValues | None = None
    cached: Any = None
    has_skipped: bool = False
    layouts: dict[object, Layout] = field(default_factory=dict)
    is_eager: bool = field(default_factory=paddle.in_dynamic_mode)
    records_gradients: bool = field(default_factory=lambda: paddle.in_dynamic_mode() and paddle.is_grad_enabled())
    _num_merged: dict[Layout, int] = field(default_factory=dict)
    _reducers: dict[Layout, Reducer] = field(default_factory=dict)

    def set_timestep(self, timestep: paddle.Tensor) -> None:
        """Set the timestep, the first that the model embeds; ignore later ones.

        Settings that depend on the step read it, which waits for the device.
        """
        if self.timestep is not None:
            return
        self.timestep = timestep
        settings = self._list_step_settings()
        if not settings:
            return
        require_eager(settings[0])
        if self.is_recomputing:
            raise ToMeValueError(
                f"{settings[0]} needs the step of each call, which is unknown where a backward pass runs the whole "
                "denoiser again; checkpoint its blocks (enable_gradient_checkpointing), or apply_tome with one ratio "
                "and without it"
            )
        self._begin_step(float(timestep.reshape([-1])[0]))

    def _list_step_settings(self) -> list[str]:
        """List the settings that need the step."""
        config = self.state.config
        names = {
            "a ratio that changes over the denoising, start or end": config.uses_progress,
            "a cache over steps": bool(config.cache),
            "reuse_steps": config.reuse_steps > 1 and self.is_eager,  # a program has no values while it is traced
        }
        return [name for name, is_used in names.items() if is_used]

    def _begin_step(self, timestep: float) -> None:
        """Find the step of this call, its progress and shared values."""
        config, highest = self.state.config, self.state.max_timestep
        if self.pipeline_call is not None:
            self.denoising = self.pipeline_call.find_denoising(self.state, self.denoiser)
        if self.denoising is not None:
            self.step = self.denoising.find_step(timestep)
        if self.step is not None:
            self.progress = self.step.progress
        elif self.denoising is None and 0 <= timestep <= highest:
            self.progress = (highest - timestep) / highest
        elif config.uses_progress:
            self.state.warn_once(
                "the timestep of a call is on no list of its pipeline's scheduler or, without a pipeline, outside 0 to "
                f"{highest:g}, so the progress of the denoising is unknown and it runs unmerged; call the model "
                "through a pipeline that returns its images (if you replaced the __call__ of its class, call "
                "ppdiffusers_tome.install() again), or give one ratio for the whole denoising"
            )
        if not config.shares_steps or self.records_gradients:  # of random timesteps and images, in training
            return
        if self.denoising is not None and self.step is not None:
            self.shared = self.denoising.share_values(self.step, self.latent_shape, self.conditioning)
        else:
            self.state.warn_once(
                "steps are known only in a call of a pipeline, at timesteps on the list of its scheduler, so cache and "
                "reuse_steps have no effect here"
            )

    def end(self) -> None:
        """Count a call that ended, for the report of its image."""
        settings = self._list_step_settings()
        if self.timestep is None and settings:
            self.state.warn_once(
                f"this model does not report its timestep, so these have no effect: {', '.join(settings)}; where its "
                "ratio changes over the denoising it runs unmerged, so give one ratio"
            )
        if self.denoising is not None:
            self.denoising.count_call(self.step, is_skipped=self.has_skipped)

    def find_reduction(self, block: Hashable, layout: Layout, tokens: paddle.Tensor) -> TokenReduction | None:
        """Return the reduction of a block's tokens; None: run unmerged."""
        grid, shape = layout.grid, list(tokens.shape)
        if tokens.ndim == 5:  # of a video each frame is by itself
            tokens = tokens.transpose([0, 2, 1, 3, 4]).flatten(0, 1)
        if tokens.ndim == 4 and shape[-2:] == [grid.height, grid.width]:
            tokens = tokens.flatten(2).transpose([0, 2, 1])
        if tokens.ndim != 3 or tokens.shape[1] != layout.num_tokens:
            prefix = f" behind {layout.prefix} others" if layout.prefix else ""
            self.state.warn_once(
                f"a block got tokens of shape {shape} where its latent has {grid} tokens{prefix}; it runs unmerged"
            )
            return None
        if layout not in self._num_merged:
            self._num_merged[layout] = self._count_merged(grid)
        if self._num_merged[layout] == 0:
            return None
        key = (block, layout, tokens.shape[0])
        # What steps do not share is not kept: a block matches once, and memory is short.
        reductions = {} if self.shared is None or self.state.config.reuse_steps == 1 else self.shared.reductions
        if key not in reductions:
            if layout not in self._reducers:
                self._reducers[layout] = build_reducer(
                    self.state.config, layout, self._num_merged[layout], timestep=self.timestep
                )
            reductions[key] = self._reducers[layout](tokens)
        return reductions[key]

    def _count_merged(self, grid: Grid) -> int:
        """Count a grid's tokens that merge; warn where none can."""
        config = self.state.config
        if config.uses_progress and self.progress is None:
            return 0
        num_merged = config.num_merged(grid, self.progress)
        if grid.num_cells(config.sx, config.sy, config.st) == 0:
            if num_merged > 0:
                self.state.warn_once(
                    f"a grid of {grid} tokens is smaller than one cell of {Grid(config.sy, config.sx, config.st)}, so "
                    "its blocks run unmerged; use a larger image, more frames or a smaller stride"
                )
            return 0
        if self.denoising is not None and grid.num_merged(config.highest_ratio) > 0:
            self.denoising.ratio_merges.add(num_merged > 0)
        return num_merged


@dataclass(eq=False)
class BlockCall:
    """One call of a block, the ``layer``.

    Attributes:
        layout: of its tokens.
        tokens: its input, ``[batch, tokens, channels]`` or ``[batch, channels, (frames,) height, width]``; dropped when
            the reduction is made, as memory is short.
        has_merged: True once a merge point ran on fewer tokens.
    """

    call: DenoiserCall
    layer: Hashable
    layout: Layout
    tokens: paddle.Tensor | None
    has_merged: bool = False

    @cached_property
    def reduction(self) -> TokenReduction | None:
        """The reduction of the tokens, made at the first use; None: run unmerged.

        Not earlier, as a DiT embeds its timestep inside its first block.
        """
        tokens, self.tokens = self.tokens, None
        return None if tokens is None else self.call.find_reduction(self.layer, self.layout, tokens)

    def count_merging(self) -> None:
        """Count the block as one whose tokens merged; tell ``WATCHERS`` once."""
        if not self.has_merged:
            self.has_merged = True
            for watch in WATCHERS:
                watch(self)


@dataclass(eq=False)
class PointCall:
    """One call of a merge point, which runs on fewer tokens.

    Attributes:
        reduction: of the block's tokens.
        rotations: the rotary embedding of the output of each norm, by the norm's name.
        awaited: names of the layers of attention without which its result would be wrong, until each has run.
        has_reduced: True once a projection ran on reduced tokens.
        reduced: the last tokens of a projection and what they were reduced to, for the next that gets the same tensor.
    """

    block: BlockCall
    reduction: TokenReduction
    merge_point: MergePoint
    rotations: dict[str, Rotation] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    has_reduced: bool = False
    reduced: tuple[Any, Any] = (None, None)

    def require_fit(self, layer: Layer, tokens: paddle.Tensor | None) -> None:
        """Raise an ``UnmergeableError`` where a layer's tokens cannot be reduced."""
        batch, num_tokens = self.reduction.batch, self.reduction.num_tokens
        shape = [] if tokens is None else list(tokens.shape)
        is_batch = len(shape) == 3 and (shape[0] == batch or -1 in (shape[0], batch))
        if not is_batch or (shape[1] != num_tokens and not (self.merge_point.text and shape[1] > num_tokens)):
            raise UnmergeableError(
                f"{type(layer).__name__} got tokens of shape {shape} instead of [{batch}, {num_tokens}, channels], so "
                "it runs unmerged: feed-forward chunking, tiles around attention (HyperTile) and attention processors "
                "that put other tokens beside them do that"
            )

    def reduce(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Reduce the image's tokens of ``[batch, tokens, channels]``."""
        reduction, merge_point = self.reduction, self.merge_point
        if not merge_point.text:
            return reduction.reduce(tokens)
        text_first = merge_point.text_first
        image, text = TokenSpan(reduction.num_tokens, text_first).split(tokens)
        return TokenSpan(reduction.num_left, text_first).join(reduction.reduce(image), text)

    def restore(self, output: Any) -> Any:
        """Restore the image's tokens in a layer's first or only output."""
        if isinstance(output, (tuple, list)):
            restored = [self.restore(output[0]), *output[1:]]
            return restored if isinstance(output, list) else tuple(restored)
        reduction, merge_point = self.reduction, self.merge_point
        num_text = output.shape[1] - reduction.num_left
        if num_text < 0 or (num_text > 0 and not merge_point.text):
            return output  # not of merged tokens: a function of the user may replace the output
        if num_text == 0:
            return reduction.restore(output)
        text_first = merge_point.text_first
        image, text = TokenSpan(reduction.num_left, text_first).split(output)
        return TokenSpan(reduction.num_tokens, text_first).join(reduction.restore(image), text)
