"""Overrides of blocks, and of layers that get their latent or tokens."""

from collections.abc import Sequence
from typing import Any

import paddle

from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.patching.arguments import find_arguments, find_first_argument
from ppdiffusers_tome.patching.blocks import MergeableBlock
from ppdiffusers_tome.patching.call_stack import CALL_STACK, CHANGE_LOCK, StackEntry
from ppdiffusers_tome.patching.layers import find_layer
from ppdiffusers_tome.patching.override import Original, Override, list_overrides
from ppdiffusers_tome.patching.paddle_compat import require_eager
from ppdiffusers_tome.patching.state.block_call import BlockCall
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState


class GridOverride(Override):
    """The override of the layer whose latent tells the blocks' layout.

    That layer runs inside a traced program, unlike the denoiser, and its input has the exact size at every level.
    """

    def __init__(self, state: DenoiserState, block: MergeableBlock) -> None:
        super().__init__(state, find_layer(block.parent, block.adapter.grid_layer))
        self.parent, self.adapter = block.parent, block.adapter
        # Tensors whose values tell a grid, their versions, and the grid.
        self._known: tuple[Sequence[Any], Sequence[int], Grid | None] = ((), (), None)

    def run(self, call: DenoiserCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Set the call's layout, or warn that none exists; run the layer."""
        inputs = find_arguments(self.layer, args, kwargs, self.adapter.grid_inputs)
        grid = None if inputs is None else self._find_grid(inputs)
        if inputs is not None and grid is not None:
            call.layouts[self] = Layout(grid, self.adapter.prefix(self.parent, *inputs))
        else:
            call.layouts.pop(self, None)  # of an earlier run in this call
            self.state.awaits_blocks = False
            self.state.warn_once(
                f"{' and '.join(map(str, self.adapter.grid_inputs))} of {type(self.parent).__name__} do not describe a "
                "grid of tokens, row by row, so it runs unmerged"
            )
        return original(*args, **kwargs)

    def _find_grid(self, inputs: Sequence[Any]) -> Grid | None:
        """Return the grid; read one in tensors' values only after a change."""
        adapter = self.adapter
        if not adapter.grid_from_values:
            grid = adapter.find_grid(self.parent, *inputs)
            if grid is not None and min(grid.height, grid.width) < 0:
                require_eager("a dynamic height or width", "give both in the InputSpec")
            return grid
        require_eager(f"a grid given by the values of {' and '.join(map(str, adapter.grid_inputs))}", "remove_tome")
        known, versions = self._known, [tensor.inplace_version for tensor in inputs]
        if known[1] != versions or any(a is not b for a, b in zip(known[0], inputs, strict=True)):
            self._known = known = inputs, versions, adapter.find_grid(self.parent, *inputs)
        return known[2]


class BlockOverride(Override):
    """The override of a block, which holds those inside by path.

    Adapters such as LoRA replace layers after ToMe was applied; at the next call of the block the overrides move to the
    new layers at their paths. An override of a whole attention stays on it inside of a wrapper.
    """

    def __init__(
        self, state: DenoiserState, block: MergeableBlock, grid: GridOverride, inner: Sequence[tuple[str, Override]],
    ) -> None:  # fmt: skip
        super().__init__(state, block.layer)
        self.grid, self.path = grid, block.path
        # Split once, as ``run`` walks the paths at every call of the block, without a call of ``find_layer`` for each.
        self._inner = [([*filter(None, path.split("."))], override) for path, override in inner]

    def note_outside(self) -> None:
        """Warn of a block that runs outside of a call of its denoiser."""
        states = {override.state for override in list_overrides(self.layer)}
        # Of two models that share the block, the other may run.
        is_used = CALL_STACK.pipeline_call is not None or paddle.is_grad_enabled()
        if is_used and states.isdisjoint(entry.call.state for entry in CALL_STACK.entries):
            self.state.warn_once(
                f"{type(self.layer).__name__} ran outside of a call of its denoiser, so unmerged: a function replaced "
                "the denoiser's forward, the block was copied or moved, or other code called it alone; call apply_tome "
                "again. In a backward pass, gradients are wrong: recompute needs Paddle 3 and preserve_rng_state=True"
            )

    def run(self, call: DenoiserCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run the block in a ``BlockCall``, which matches its tokens once."""
        for names, override in self._inner:
            layer: Any = self.layer
            for name in names:
                layer = getattr(layer, name, None)
            if layer is not override.layer and layer is not None:
                with CHANGE_LOCK:  # another thread may find the new layer, too
                    override.follow(layer)
        block_call: BlockCall | None = None
        layout = call.layouts.get(self.grid)
        tokens = find_first_argument(self.layer, args, kwargs)
        if layout is not None and tokens is not None:
            block_call = BlockCall(call, self.layer, self.path, layout, tokens)
            self.state.awaits_blocks = False
        return CALL_STACK.run(StackEntry(call, block_call), original, *args, **kwargs)

    def take_off(self) -> None:
        """Remove this and the overrides inside, also on a layer that left the model."""
        super().take_off()
        for _, override in self._inner:
            override.take_off()
