"""A real block with token merging computes plain attention over the groups of its tokens, whatever the settings."""

from dataclasses import replace
from functools import cache
from typing import Any

import paddle
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tiny
from patching.helpers import first_arguments, groups
from ppdiffusers_tome import ToMeConfig, ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.patching.state.plan import Plan

TIMESTEP = 500


@cache
def unet() -> paddle.nn.Layer:
    return tiny.small_unet()


@st.composite
def configs(draw: st.DrawFn) -> ToMeConfig:
    method = draw(st.sampled_from(["tome", "keys", "todo"]))
    config = ToMeConfig(draw(st.floats(0, 0.7)), method=method)
    config = replace(config, **draw(st.sampled_from([dict(use_rand=False), *(dict(seed=i) for i in range(10))])))
    changes: dict[str, Any] = dict(
        sx=draw(st.integers(2, 4)), sy=draw(st.integers(2, 4)), tile=draw(st.sampled_from([None, 4, 8]))
    )
    try:
        return replace(config, **changes)
    except ToMeValueError:  # methods that compare nothing take no tiles
        return replace(config, **{**changes, "tile": None})


def attend(attn: Any, queries: paddle.Tensor, keys: paddle.Tensor, log_sizes: paddle.Tensor | None) -> paddle.Tensor:
    def split_heads(x: paddle.Tensor) -> paddle.Tensor:
        return x.reshape([x.shape[0], x.shape[1], attn.heads, -1]).transpose([0, 2, 1, 3])

    query, key, value = (split_heads(x) for x in (attn.to_q(queries), attn.to_k(keys), attn.to_v(keys)))
    scores = paddle.matmul(query, key, transpose_y=True) * attn.scale
    if log_sizes is not None:
        scores = scores + log_sizes.unsqueeze([1, 2])
    out = paddle.matmul(paddle.nn.functional.softmax(scores, axis=-1), value)
    return attn.to_out[0](out.transpose([0, 2, 1, 3]).reshape([queries.shape[0], queries.shape[1], -1]))


def reduce_by_hand(reduction: Any, x: paddle.Tensor) -> paddle.Tensor:
    """One token for each group: the mean, or the token that stays."""
    batch, _, channels = x.shape
    rows = x.reshape([-1, channels])
    if isinstance(reduction, Matching):
        reduced = [rows[paddle.to_tensor(group)].mean(axis=0) for group in groups(reduction)]
        return paddle.stack(reduced).reshape([batch, -1, channels])
    positions = reduction.positions.expand([batch, reduction.num_left])
    return paddle.stack([x[image][positions[image]] for image in range(batch)])


@settings(max_examples=40)
@given(configs(), st.integers(1, 2), st.integers(4, 11), st.integers(4, 11))
@paddle.no_grad()
def test_a_block_attends_over_the_groups(config: ToMeConfig, batch: int, height: int, width: int) -> None:
    model, grid = unet(), Grid(height, width)
    num_merged = config.num_merged(grid)
    assume(num_merged > 0)
    block = model.down_blocks[0].attentions[0].transformer_blocks[0]
    apply_tome(model, config)
    try:
        with first_arguments(block) as seen, first_arguments(block.norm2) as seen_behind:
            tiny.run_unet(model, batch, height, width, TIMESTEP)
    finally:
        remove_tome(model)
    x, after_attention = map(paddle.to_tensor, (*seen, *seen_behind))
    plan = Plan(config, Layout(grid), num_merged, timestep=paddle.to_tensor([TIMESTEP]))
    reduction: Any = plan.make_reduction(x)
    tokens = block.norm1(x)
    keys = reduce_by_hand(reduction, tokens)
    queries = tokens if reduction.keeps_queries else keys
    out = attend(block.attn1, queries, keys, reduction.log_group_sizes if config.uses_group_sizes else None)
    if not reduction.keeps_queries:
        out = paddle.gather(out.flatten(0, 1), reduction.owner).reshape(x.shape)
    assert (x + out - after_attention).abs().max().item() <= 1e-5
