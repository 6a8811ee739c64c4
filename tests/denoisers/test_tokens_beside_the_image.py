"""Tokens of text, time and image embeddings stand among those of the image, and never merge."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from patching.contract import first_arguments, groups, watch_blocks
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.layers import find_layer
from zoo import sd3, unidiffuser, uvit, wuerstchen_decoder, wuerstchen_prior

GRID_TOKENS = 64  # 16x16 latents in patches of two


def matchings(model: tiny.Model, run: Any) -> list[Matching]:
    called = watch_blocks(model)
    with paddle.no_grad():
        run(model)
    return [block.reduction for block in called]


def inputs_of(layer: tiny.Model, model: tiny.Model, run: Any) -> list[np.ndarray]:
    with first_arguments(layer) as seen, paddle.no_grad():
        run(model)
    return seen


@pytest.mark.parametrize(
    ("build", "run", "prefix"),
    [
        (uvit.SPECIMEN.build, uvit.SPECIMEN.run, 1 + tiny.TEXT_TOKENS),
        (unidiffuser.SPECIMEN.build, unidiffuser.SPECIMEN.run, 4 + tiny.TEXT_TOKENS),
        (
            lambda: unidiffuser.SPECIMEN.build(use_data_type_embedding=False),
            unidiffuser.SPECIMEN.run,
            3 + tiny.TEXT_TOKENS,
        ),
    ],
    ids=["uvit", "unidiffuser", "unidiffuser-v0"],
)
@pytest.mark.parametrize("tile", [None, 2])
def test_rows_of_tokens_before_the_grid_hold_nothing_else(build: Any, run: Any, prefix: int, tile: int | None) -> None:
    model = apply_tome(build(), 0.7, tile=tile)
    used = matchings(model, run)
    assert len(used) == 3
    for matching in used:
        assert matching.num_tokens == prefix + GRID_TOKENS
        assert matching.num_left == prefix + GRID_TOKENS - int(0.7 * GRID_TOKENS)
        merged = [group % matching.num_tokens for group in groups(matching)]
        assert sum(group.min() < prefix for group in merged) == matching.batch * prefix
        assert all(len(group) == 1 for group in merged if group.min() < prefix)
        assert max(len(group) for group in merged) > 1


def test_text_of_stable_diffusion_3_never_merges() -> None:
    model = sd3.SPECIMEN.build()
    block = model.transformer_blocks[0]
    (plain,) = inputs_of(block.attn.add_q_proj, model, sd3.SPECIMEN.run)
    assert plain.shape[1] == tiny.TEXT_TOKENS
    apply_tome(model, 0.7, merge_crossattn=True, merge_mlp=True)
    for path in ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"):
        (text,) = inputs_of(find_layer(block, path), model, sd3.SPECIMEN.run)
        assert np.array_equal(text, plain)
    (text,) = inputs_of(block.ff_context, model, sd3.SPECIMEN.run)
    assert text.shape[1] == tiny.TEXT_TOKENS
    for path in ("attn.to_q", "attn.to_k", "attn.to_v", "ff"):
        (image,) = inputs_of(find_layer(block, path), model, sd3.SPECIMEN.run)
        assert image.shape[1] == GRID_TOKENS - int(0.7 * GRID_TOKENS)
    assert all(matching.num_tokens == GRID_TOKENS for matching in matchings(model, sd3.SPECIMEN.run))


@pytest.mark.parametrize("zoo", [wuerstchen_prior, wuerstchen_decoder], ids=["prior", "decoder"])
def test_text_behind_wuerstchens_keys_never_merges(zoo: Any) -> None:
    model = zoo.SPECIMEN.build()
    block = find_blocks(model)[0].block
    paths = ("attention.to_k", "attention.to_v")
    plain = [inputs_of(find_layer(block, path), model, zoo.SPECIMEN.run)[0] for path in paths]
    apply_tome(model, 0.7)
    for path, before in zip(paths, plain, strict=False):
        grid_tokens = before.shape[1] - tiny.TEXT_TOKENS
        (keys,) = inputs_of(find_layer(block, path), model, zoo.SPECIMEN.run)
        assert keys.shape[1] == grid_tokens - int(0.7 * grid_tokens) + tiny.TEXT_TOKENS
        assert np.array_equal(keys[:, -tiny.TEXT_TOKENS :], before[:, -tiny.TEXT_TOKENS :])
