"""What never merges: tokens of texts, times and embeddings among those of the image, and tokens of two frames."""

from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import Layer

import tiny
from patching.helpers import first_arguments, groups, watch_blocks
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.layers import find_layer
from ppdiffusers_tome.patching.state.block_call import BlockCall
from zoo import specimens

GRID_TOKENS = 64  # 16x16 latents in patches of two
ZOO = {each.name: each for each in specimens()}
VIDEO = ["hotshot", "lvdm", "st_unet", "unet_3d", "unet_motion", "unet_spatio_temporal", "vid2vid_st_unet"]
FRAMES = 3


@paddle.no_grad()
def list_merging_calls(name: str, model: Layer, **size: int) -> list[BlockCall]:
    with watch_blocks(model) as called:
        ZOO[name].run(model, **size)
    return called


@paddle.no_grad()
def input_of(layer: Layer, model: Layer, name: str) -> np.ndarray:
    with first_arguments(layer) as seen:
        ZOO[name].run(model)
    (tokens,) = seen
    return tokens


@pytest.mark.parametrize(
    ("name", "config", "num_others"),
    [("uvit", {}, 1), ("unidiffuser", {}, 4), ("unidiffuser", dict(use_data_type_embedding=False), 3)],
    ids=["uvit", "unidiffuser", "unidiffuser-v0"],
)
@pytest.mark.parametrize("tile", [None, 2])
def test_rows_of_tokens_before_the_grid_hold_nothing_else(
    name: str, config: dict[str, Any], num_others: int, tile: int | None
) -> None:
    model, prefix = apply_tome(ZOO[name].build(**config), 0.7, tile=tile), num_others + tiny.TEXT_TOKENS
    used = [call.reduction for call in list_merging_calls(name, model)]
    assert len(used) == 3
    for matching in used:
        assert matching.num_tokens == prefix + GRID_TOKENS
        assert matching.num_left == prefix + GRID_TOKENS - int(0.7 * GRID_TOKENS)
        merged = [group % matching.num_tokens for group in groups(matching)]
        assert sum(group.min() < prefix for group in merged) == matching.batch * prefix
        assert all(len(group) == 1 for group in merged if group.min() < prefix)
        assert max(len(group) for group in merged) > 1


def test_text_of_stable_diffusion_3_never_merges() -> None:
    model = ZOO["sd3"].build()
    block = model.transformer_blocks[0]
    plain = input_of(block.attn.add_q_proj, model, "sd3")
    assert plain.shape[1] == tiny.TEXT_TOKENS
    apply_tome(model, 0.7, merge_crossattn=True, merge_mlp=True)
    for path in ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"):
        assert np.array_equal(input_of(find_layer(block, path), model, "sd3"), plain)
    assert input_of(block.ff_context, model, "sd3").shape[1] == tiny.TEXT_TOKENS
    for path in ("attn.to_q", "attn.to_k", "attn.to_v", "ff"):
        assert input_of(find_layer(block, path), model, "sd3").shape[1] == GRID_TOKENS - int(0.7 * GRID_TOKENS)
    assert all(call.reduction.num_tokens == GRID_TOKENS for call in list_merging_calls("sd3", model))


@pytest.mark.parametrize("name", ["wuerstchen_prior", "wuerstchen_decoder"])
def test_text_behind_wuerstchens_keys_never_merges(name: str) -> None:
    model = ZOO[name].build()
    attention = find_blocks(model)[0].layer.attention
    layers = (attention.to_k, attention.to_v)
    plain = [input_of(layer, model, name) for layer in layers]
    apply_tome(model, 0.7)
    for layer, before in zip(layers, plain, strict=True):
        grid_tokens = before.shape[1] - tiny.TEXT_TOKENS
        keys = input_of(layer, model, name)
        assert keys.shape[1] == grid_tokens - int(0.7 * grid_tokens) + tiny.TEXT_TOKENS
        assert np.array_equal(keys[:, -tiny.TEXT_TOKENS :], before[:, -tiny.TEXT_TOKENS :])


@pytest.mark.parametrize("name", VIDEO)
def test_groups_never_hold_tokens_of_two_frames(name: str) -> None:
    model = apply_tome(ZOO[name].build(), 0.5, max_downsample=8)
    levels = {block.layer: block.level for block in find_blocks(model)}
    called = list_merging_calls(name, model, batch=2, height=16, width=8, frames=FRAMES)
    assert len(called) == len(levels) > 0
    for block in called:
        level, matching = levels[block.layer], block.reduction
        rows = 16 // level + (ZOO[name].pads_grid and level > 1)
        assert (matching.batch, matching.num_tokens) == (2 * FRAMES, rows * (8 // level))
        assert matching.num_left == matching.num_tokens - matching.num_tokens // 2
        assert all(len(set(group // matching.num_tokens)) == 1 for group in groups(matching))


def test_as_many_frames_as_rows_and_columns_merge_over_space() -> None:
    """With 8 frames of 8x8 no shape tells space from time."""
    model = apply_tome(ZOO["unet_3d"].build(), 0.5)
    matchings = [call.reduction for call in list_merging_calls("unet_3d", model, batch=1, height=8, width=8, frames=8)]
    assert [(matching.batch, matching.num_tokens, matching.num_left) for matching in matchings] == [(8, 64, 32)] * 3
