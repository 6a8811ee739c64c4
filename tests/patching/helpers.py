"""Helpers of tests: what merges in a call; errors, caches and chunks on layers."""

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import Layer
from ppdiffusers.models.attention import BasicTransformerBlock

from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.layers import find_layer
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.slots import find_slot
from ppdiffusers_tome.patching.state import plan
from ppdiffusers_tome.patching.state.block_call import WATCHERS, BlockCall

# Where the layer that makes an attention's queries may be in a block.
QUERIES = ("attn1.to_q", "attn.to_q", "attention.to_q", "attn.qkv", "to_q")

needs_recompute = pytest.mark.skipif(paddle.__version__[0] == "2", reason="Paddle 2.6 has no recomputation on a CPU")


def chunk(model: Layer, size: int, dim: int) -> Layer:
    for layer in model.sublayers():
        if isinstance(layer, BasicTransformerBlock):
            layer.set_chunk_feed_forward(size, dim)
    return model


def groups(matching: Matching) -> list[np.ndarray]:
    """Token numbers of every row of the merged sequence, counted over the batch."""
    owner = matching.owner.numpy()
    return [np.flatnonzero(owner == row) for row in range(matching.batch * matching.num_left)]


class StumbledError(Exception):
    """The error that the tests raise."""


@contextlib.contextmanager
def failing_in(layer: Layer, kind: type[BaseException] = StumbledError) -> Iterator[None]:
    def fail(*_: Any) -> None:
        raise kind

    hook = layer.register_forward_post_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def first_arguments(layer: Layer) -> Iterator[list[np.ndarray]]:
    """Yield a list that fills with the first arguments of a layer, merged already."""
    seen: list[np.ndarray] = []

    def compute(tokens: paddle.Tensor, *others: Any, **keywords: Any) -> Any:
        seen.append(tokens.numpy())
        return type(layer).forward(layer, tokens, *others, **keywords)

    slot = find_slot(layer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot, "inner", compute) if slot else patch.setitem(vars(layer), "forward", compute)
        yield seen


@contextlib.contextmanager
def count_queries(model_or_pipe: Any) -> Iterator[dict[str, list[int]]]:
    """Yield the queries of each attention call, by its block's path."""
    counts: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        for part, model in list_models(model_or_pipe):
            for block in find_blocks(model):
                layers = (find_layer(block.layer, path) for path in QUERIES)
                queries = next((layer for layer in layers if layer is not None), None)
                if queries is None:
                    continue  # a block of the latent upscaler that has cross-attention alone
                seen = counts.setdefault(f"{part}.{block.path}", [])
                hook = queries.register_forward_post_hook(lambda _, x, output, seen=seen: seen.append(output.shape[1]))
                stack.callback(hook.remove)
        yield counts


@contextlib.contextmanager
def watch_blocks(model: Layer, keep: Callable[[BlockCall], list] = lambda block: [block]) -> Iterator[list]:
    """Yield a list that fills with what to keep of merging calls."""
    layers = {id(layer) for layer in model.sublayers(include_self=True)}
    kept: list[Any] = []

    def note(block: BlockCall) -> None:
        if id(block.layer) in layers:
            kept.extend(keep(block))

    WATCHERS.append(note)
    try:
        yield kept
    finally:
        WATCHERS.remove(note)


def refer_to_tensors(block: BlockCall) -> list[weakref.ref]:
    """Refer weakly to a call and every tensor of its merging."""
    tensors = [each for each in vars(block.reduction).values() if isinstance(each, paddle.Tensor)]
    return [weakref.ref(each) for each in (block, block.call, block.reduction, *tensors)]


def count_alive(references: list[weakref.ref]) -> int:
    gc.collect()
    return sum(each() is not None for each in references)


class EverySecond(Layer):
    """A cache such as Pyramid Attention Broadcast's on a layer.

    Every second call gets what the one before got, the very object.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.fn_ref = SimpleNamespace(original_forward=forward, forward=forward)
        self.calls, self.state = 0, SimpleNamespace(cache=None)

    @classmethod
    def put_on(cls, layer: Layer) -> None:
        cache = cls(layer.forward)
        layer.forward = cache.forward
        layer._diffusers_hook = SimpleNamespace(hooks={"every second": cache}, _fn_refs=[cache.fn_ref])

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        self.calls += 1
        if self.calls % 2:
            self.state.cache = self.fn_ref.original_forward(*inputs, **keywords)
        return self.state.cache


@contextlib.contextmanager
def count_matchings(layer: Layer) -> Iterator[list[int]]:
    """Yield the number of matchings that are made in each call of a layer."""
    counts: list[int] = []
    match = plan.match_tokens

    def count(*args: Any, **given: Any) -> Any:
        counts[-1] += 1
        return match(*args, **given)

    hook = layer.register_forward_pre_hook(lambda *_: counts.append(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "match_tokens", count)
        try:
            yield counts
        finally:
            hook.remove()
