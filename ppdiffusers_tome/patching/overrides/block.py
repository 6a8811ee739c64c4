"""Overrides of blocks and parents that find tokens and their grid."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.patching.adapters.adapter import BlockAdapter
from ppdiffusers_tome.patching.blocks import MergeableBlock, find_layer
from ppdiffusers_tome.patching.layer_class import Override
from ppdiffusers_tome.patching.state.calls import BlockCall, DenoiserCall, require_eager
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.recompute import store_call

Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]


class InputOverride(Override):
    """An override that reads the arguments of its layer; ``read`` can be pickled."""

    def __init__(
        self, state: DenoiserState, layer: Layer, read: Callable[[DenoiserCall, Layer, Arguments, Keywords], None]
    ) -> None:
        super().__init__(state, layer)
        self.read = read

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Read the arguments and run the layer."""
        self.read(call, self.layer, args, kwargs)
        return self.call_original(*args, **kwargs)


class ParentOverride(Override):
    """The override of the parent of blocks, which holds their layout in a call.

    An ``InputOverride`` shows the arguments of the layer that gets the latent to ``read_layout``.
    """

    def __init__(self, state: DenoiserState, block: MergeableBlock) -> None:
        super().__init__(state, block.parent)
        self.adapter, self.level = block.adapter, block.level

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the parent with the layout of its blocks in the call."""
        if call.in_graph:
            store_call(self.state, call)
        try:
            return self.call_original(*args, **kwargs)
        finally:
            call.layouts.pop(self, None)

    def read_layout(self, call: DenoiserCall, layer: Layer, args: Arguments, kwargs: Keywords) -> None:
        """Set the layout in a call, or log that no grid exists."""
        call.layouts.pop(self, None)
        adapter = self.adapter
        inputs = find_arguments(layer, args, kwargs, adapter.grid_inputs)
        if inputs is None:
            return
        names = " and ".join(map(str, adapter.grid_inputs))
        if adapter.grid_from_values:
            require_eager(f"a grid given by the values of {names}", "remove_tome")
            grid = self._read_values(adapter, inputs)
        else:
            grid = adapter.find_grid(self.layer, *inputs)
        if grid is not None:
            call.set_layout(self, Layout(grid, adapter.prefix(self.layer, *inputs), self.level))
            return
        self.state.warn_once(
            "grid",
            f"{names} of {type(self.layer).__name__} do not describe a grid of tokens, row by row, so it runs unmerged",
        )

    def _read_values(self, adapter: BlockAdapter, inputs: Sequence[Any]) -> Grid | None:
        """Return the grid in values, read again only after a change."""
        # The same for all blocks of a parent, independent of their prefix.
        grids, parent = self.state.denoising().grids, id(self.layer)
        versions = [tensor.inplace_version for tensor in inputs]
        known = grids.get(parent)
        if known is None or known[1] != versions or any(a is not b for a, b in zip(known[0], inputs, strict=True)):
            grids[parent] = inputs, versions, adapter.find_grid(self.layer, *inputs)
        return grids[parent][2]


class BlockOverride(Override):
    """The override of a block, which holds those inside of it by path.

    Adapters such as LoRA replace layers after ToMe was applied; at the next call of the block the overrides move to the
    new layers at their paths. An override of a whole attention stays on it inside of a wrapper.
    """

    def __init__(
        self, state: DenoiserState, block: MergeableBlock, parent: ParentOverride,
        inner: Sequence[tuple[str, Override]],
    ) -> None:  # fmt: skip
        super().__init__(state, block.block)
        self.parent, self.inner, self.gets_tokens = parent, inner, not block.adapter.tokens_layer
        for override in (self, *(override for _, override in inner)):
            override.block = self

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the block in a ``BlockCall``, which matches its tokens once."""
        if call.in_graph:
            store_call(self.state, call)
        for path, override in self.inner:
            layer = find_layer(self.layer, path)
            if layer is not override.layer and layer is not None:
                override.follow(layer)
        outer, tokens = call.block, first_argument(self.layer, args, kwargs) if self.gets_tokens else None
        call.num_blocks += 1
        layout = call.find_layout(self.layer, self.parent)
        call.block = None if layout is None else BlockCall(call, self.layer, layout, tokens)
        try:
            return self.call_original(*args, **kwargs)
        finally:
            call.block = outer

    def take_off(self) -> None:
        """Remove this and the overrides inside of the block."""
        super().take_off()
        for _, override in self.inner:
            override.take_off()


def read_tokens(call: DenoiserCall, layer: Layer, args: Arguments, kwargs: Keywords) -> None:
    """Set the tokens of a block's call from the layer that gets them unchanged."""
    if call.block is not None and not call.block.is_matched:
        call.block.tokens = first_argument(layer, args, kwargs)


def first_argument(layer: Layer, args: Arguments, kwargs: Keywords) -> Any:
    """Return the first argument of a layer's call, or None."""
    return args[0] if args else kwargs.get(_parameters(type(layer).forward)[0])


def replace_first_argument(
    layer: Layer, args: Arguments, kwargs: Keywords, value: Any
) -> tuple[Arguments, dict[str, Any]]:
    """Return the arguments of a layer's call with the first one replaced."""
    if args:
        return (value, *args[1:]), dict(kwargs)
    return args, {**kwargs, _parameters(type(layer).forward)[0]: value}


def find_arguments(
    layer: Layer, args: Arguments, kwargs: Keywords, keys: Sequence[int | str]
) -> list[Any] | None:
    """Return arguments by position or name; None where one is missing."""
    parameters = _parameters(type(layer).forward)
    arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
    found = [arguments.get(parameters[key] if isinstance(key, int) else key) for key in keys]
    return None if any(value is None for value in found) else found


@lru_cache(maxsize=64)
def _parameters(forward: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(forward).parameters)[1:]
