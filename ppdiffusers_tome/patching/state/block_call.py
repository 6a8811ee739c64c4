"""One call of a block, and the reduction of its tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import paddle

from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.merging.reduction import TokenReduction
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall

# Called with every ``BlockCall`` in which tokens merged, of all denoisers.
WATCHERS: list[Callable[["BlockCall"], None]] = []


@dataclass(eq=False)
class BlockCall:
    """One call of a block, the ``layer`` at a ``path`` in its denoiser."""

    call: DenoiserCall
    layer: paddle.nn.Layer
    path: str
    layout: Layout  # of its tokens
    # Its input, [batch, tokens, channels] or [batch, channels, (frames,) height, width], until the reduction is made.
    tokens: paddle.Tensor | None
    is_told: bool = False  # True once ``WATCHERS`` know of it

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
        if call.shared is None or call.state.config.reuse_steps == 1:
            return plan.make_reduction(tokens)
        reductions, key = call.shared.reductions, (self.path, layout, tokens.shape[0])
        if key not in reductions:
            reductions[key] = plan.make_reduction(tokens)
        return reductions[key]

    def tell_watchers(self) -> None:
        """Tell ``WATCHERS``, once, that tokens of the block merged."""
        if not self.is_told:
            self.is_told = True
            for watch in WATCHERS:
                watch(self)
