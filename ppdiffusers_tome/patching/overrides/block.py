"""Overrides of blocks and parents that find tokens and their grid."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.patching.blocks import MergeableBlock
from ppdiffusers_tome.patching.layers import find_layer
from ppdiffusers_tome.patching.overrides.method import ForwardOverride
from ppdiffusers_tome.patching.paddle_compat import EVERY_FRAME
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.state.call_stack import CALL_STACK
from ppdiffusers_tome.patching.state.calls import DenoiserCall, require_eager
from ppdiffusers_tome.patching.state.recompute import find_stored_call, store_call


class EntryForward(ForwardOverride):
    """An override of a layer that may run outside of its denoiser.

    A user may call the layer directly, and a backward pass runs it again.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**EVERY_FRAME)
        call = self.attachment.current_call()
        if call is None and self.removed_at is None:
            call = find_stored_call(self.attachment) or self.begin_call()
            if call is not None:
                with self.attachment.make_current(call):
                    return self.run(call, *args, **kwargs)
        elif call is not None and call.in_graph:
            store_call(self.attachment, call)
        return super().__call__(*args, **kwargs)

    def begin_call(self) -> DenoiserCall | None:
        """Return a new call outside of the denoiser, or None."""
        return None


class LayoutReader:
    """The reader of the layout that the blocks of one parent share.

    It reads the arguments of the layer that gets the latent. The object also identifies those blocks.
    """

    def __init__(self, attachment: Attachment, block: MergeableBlock) -> None:
        self.attachment, self.parent, self.level = attachment, block.parent, block.level
        # Not the adapter itself: a model with ToMe can be pickled.
        self.grid, self.prefix = block.adapter.grid, block.adapter.prefix
        self.inputs, self.reads_values = block.adapter.grid_inputs, block.adapter.grid_from_values

    def read(self, call: DenoiserCall, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Set the layout in a call, or log that no grid exists."""
        call.layouts.pop(self, None)
        inputs = find_arguments(layer, args, kwargs, self.inputs)
        if inputs is None:
            return
        grid = self._read_values(inputs) if self.reads_values else self.grid(self.parent, *inputs)
        if grid is not None:
            call.set_layout(self, Layout(grid, self.prefix(self.parent, *inputs), self.level))
            return
        self.attachment.warn_once(
            "grid",
            f"{' and '.join(map(str, self.inputs))} of {type(self.parent).__name__} do not describe a grid of tokens, "
            "row by row, so it runs unmerged",
        )

    def _read_values(self, inputs: Sequence[Any]) -> Grid | None:
        """Return the grid in values, read again only after a change."""
        require_eager(f"a grid given by the values of {' and '.join(map(str, self.inputs))}", "remove_tome")
        # The same for all blocks of a parent, independent of their prefix.
        key, grids = (self.grid, id(self.parent)), self.attachment.denoising().grids
        versions = [tensor.inplace_version for tensor in inputs]
        known = grids.get(key)
        if known is None or known[1] != versions or any(a is not b for a, b in zip(known[0], inputs, strict=True)):
            grids[key] = inputs, versions, self.grid(self.parent, *inputs)
        return grids[key][2]


class ParentForward(EntryForward):
    """The override of the parent of blocks.

    ``gets_latent`` is False where a layer inside of it gets the latent (``GridForward``).
    """

    def __init__(self, attachment: Attachment, layer: Layer, reader: LayoutReader, *, gets_latent: bool) -> None:
        super().__init__(attachment, layer)
        self.reader, self.gets_latent = reader, gets_latent

    def begin_call(self) -> DenoiserCall | None:
        """Return a call for a part that runs without its denoiser."""
        return None if CALL_STACK.calls else DenoiserCall(self.attachment)

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the parent with the layout of its blocks in the call."""
        try:
            if self.gets_latent:
                self.reader.read(call, self.layer, args, kwargs)
            return self.call_original(*args, **kwargs)
        finally:
            call.layouts.pop(self.reader, None)


class GridForward(ForwardOverride):
    """The override of a layer inside the parent that gets the latent."""

    def __init__(self, attachment: Attachment, layer: Layer, reader: LayoutReader) -> None:
        super().__init__(attachment, layer)
        self.reader = reader

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Read the layout and run the layer."""
        self.reader.read(call, self.layer, args, kwargs)
        return self.call_original(*args, **kwargs)


class InnerOverrides:
    """The overrides inside one block, by the paths of their layers.

    Adapters such as LoRA replace layers after ToMe was applied; at the next call of the block the overrides move to the
    new layers at their paths. An override of a whole attention stays on it inside of a wrapper.
    """

    def __init__(self) -> None:
        self._by_path: list[tuple[str, Any]] = []

    def add(self, path: str, override: Any) -> None:
        """Put an override whose layer has this path in the block."""
        override.put()
        self._by_path.append((path, override))

    def follow_layers(self, block: Layer) -> None:
        """Move overrides whose layers were replaced."""
        for path, override in self._by_path:
            layer = find_layer(block, path)
            if layer is override.layer or layer is None or override.removed_at is not None:
                continue
            if override.follows_wrappers or all(inner is not override.layer for inner in layer.sublayers()):
                override.move(layer)


class BlockForward(EntryForward):
    """The override of a block.

    ``sees_tokens`` is False where a layer inside of it gets the unchanged tokens (``TokensForward``).
    """

    def __init__(
        self, attachment: Attachment, layer: Layer, reader: LayoutReader, inner: InnerOverrides, *, sees_tokens: bool
    ) -> None:
        super().__init__(attachment, layer)
        self.reader, self.sees_tokens, self.inner = reader, sees_tokens, inner

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run the block in a ``BlockCall``, which matches its tokens once."""
        self.inner.follow_layers(self.layer)
        outer, tokens = call.block, first_argument(self.layer, args, kwargs) if self.sees_tokens else None
        call.block = call.enter_block(self, self.reader, tokens)
        try:
            return self.call_original(*args, **kwargs)
        finally:
            call.block = outer


class TokensForward(ForwardOverride):
    """The override of the layer that gets a block's unchanged tokens."""

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Set the tokens of the block's call."""
        if call.block is not None and not call.block.is_matched:
            call.block.tokens = first_argument(self.layer, args, kwargs)
        return self.call_original(*args, **kwargs)


def first_argument(layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the first argument of a layer's call, or None."""
    return args[0] if args else kwargs.get(_parameters(type(layer).forward)[0])


def replace_first_argument(
    layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a layer's call with the first one replaced."""
    if args:
        return (value, *args[1:]), dict(kwargs)
    return args, {**kwargs, _parameters(type(layer).forward)[0]: value}


def find_arguments(
    layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Sequence[int | str]
) -> list[Any] | None:
    """Return arguments by position or name; None where one is missing."""
    parameters = _parameters(type(layer).forward)
    arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
    names = [parameters[key] if isinstance(key, int) else key for key in wanted]
    return [arguments[name] for name in names] if all(arguments.get(name) is not None for name in names) else None


@lru_cache(maxsize=64)
def _parameters(forward: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(forward).parameters)[1:]
