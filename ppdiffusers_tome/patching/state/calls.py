"""The running calls of a denoiser and of a block."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.chosen_keys import TokenReduction
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.patching.paddle_compat import require_eager
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.moment import UNKNOWN, Moment, enter_moment, list_step_settings
from ppdiffusers_tome.patching.state.pipeline_call import Denoising
from ppdiffusers_tome.patching.state.plan import Plan
from ppdiffusers_tome.patching.state.shared_values import CallIdentity

# Called with every ``BlockCall`` in which tokens merged, of all denoisers.
WATCHERS: list[Callable[["BlockCall"], None]] = []


@dataclass(eq=False)
class DenoiserCall:
    """The state that blocks share in one call of their denoiser."""

    state: DenoiserState
    denoiser: Layer
    denoising: Denoising | None = None  # of the image; None outside of a pipeline
    identity: CallIdentity | None = None  # among the calls of a step; None where it shares nothing with other steps
    given_timestep: Any = None  # the timestep among the arguments, as it was given; None where they have none
    timestep: paddle.Tensor | None = None  # scalar or [batch]; None where the model has none
    moment: Moment = UNKNOWN  # looked for only if a setting needs it
    cached: Any = None  # what the cache over steps, which alone looks into it, knows of this call
    # Of the tokens of blocks that are on a grid, by the override of the layer that gets their latent.
    layouts: dict[object, Layout] = field(default_factory=dict)
    plans: dict[Layout, Plan] = field(default_factory=dict)
    is_eager: bool = field(default_factory=paddle.in_dynamic_mode)  # False while ``to_static`` traces the call

    def set_timestep(self, timestep: paddle.Tensor) -> None:
        """Set the timestep, the first that the model embeds; ignore later ones.

        Settings that depend on the step read it, which waits for the device.
        """
        if self.timestep is not None:
            return
        self.timestep = timestep
        settings = list_step_settings(self.state.config, is_eager=self.is_eager)
        if settings and self.moment is UNKNOWN:
            require_eager(settings[0])
            self.moment = enter_moment(self.state, self.denoising, float(timestep.reshape([-1])[0]), self.identity)

    def read_timestep(self) -> None:
        """Set the timestep that is among the arguments, if one is."""
        given = self.given_timestep
        if isinstance(given, (int, float)):
            given = paddle.to_tensor([given])
        if paddle.is_tensor(given) and len(given.shape) <= 1:
            self.set_timestep(given)

    def end(self) -> None:
        """Warn of settings without effect, and count the call that ended."""
        if self.timestep is None and (settings := list_step_settings(self.state.config, is_eager=self.is_eager)):
            self.state.warn_once(
                f"this model does not report its timestep, so these have no effect: {', '.join(settings)}; where its "
                "ratio changes over the denoising it runs unmerged, so give one ratio"
            )
        if self.denoising is not None:
            self.denoising.count_call(self.moment.step, is_skipped=self.cached is not None and self.cached.has_skipped)

    def find_plan(self, layout: Layout) -> Plan:
        """Return the plan of a layout; warn where nothing can merge."""
        if layout not in self.plans:
            self.plans[layout] = Plan(self.state.config, layout, self._count_merged(layout.grid))
        plan = self.plans[layout]
        plan.timestep = self.timestep  # which may be known only since tokens were counted
        return plan

    def _count_merged(self, grid: Grid) -> int:
        config = self.state.config
        if config.uses_progress and self.moment.progress is None:
            return 0
        num_merged = config.num_merged(grid, self.moment.progress)
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
    """One call of a block, the ``layer`` at a ``path`` in its denoiser."""

    call: DenoiserCall
    layer: Hashable
    path: str
    layout: Layout  # of its tokens
    # Its input, [batch, tokens, channels] or [batch, channels, (frames,) height, width], until the reduction is made.
    tokens: paddle.Tensor | None
    has_merged: bool = False  # True once a merge point ran on fewer tokens

    @cached_property
    def reduction(self) -> TokenReduction | None:
        """The reduction of the tokens, made at the first use; None: run unmerged.

        Not earlier, as a DiT embeds its timestep inside its first block.
        """
        call, layout, grid = self.call, self.layout, self.layout.grid
        tokens, self.tokens = self.tokens, None
        if tokens is None:
            return None
        shape = list(tokens.shape)
        if tokens.ndim == 5:  # of a video each frame is by itself
            tokens = tokens.transpose([0, 2, 1, 3, 4]).flatten(0, 1)
        if tokens.ndim == 4 and shape[-2:] == [grid.height, grid.width]:
            tokens = tokens.flatten(2).transpose([0, 2, 1])
        if tokens.ndim != 3 or tokens.shape[1] != layout.num_tokens:
            prefix = f" behind {layout.prefix} others" if layout.prefix else ""
            call.state.warn_once(
                f"a block got tokens of shape {shape} where its latent has {grid} tokens{prefix}; it runs unmerged"
            )
            return None
        plan = call.find_plan(layout)
        if plan.num_merged == 0:
            return None
        # What steps do not share is not kept: a block matches once, and memory is short.
        shared = call.moment.shared if call.state.config.reuse_steps > 1 else None
        if shared is None:
            return plan.reduce(tokens)
        key = (self.path, layout, tokens.shape[0])
        if key not in shared.reductions:
            shared.reductions[key] = plan.reduce(tokens)
        return shared.reductions[key]

    def count_merging(self) -> None:
        """Count the block as one whose tokens merged; tell ``WATCHERS`` once."""
        if not self.has_merged:
            self.has_merged = True
            for watch in WATCHERS:
                watch(self)
