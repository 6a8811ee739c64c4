"""A merged key counts in attention as many times as it stands for tokens."""

from types import MethodType
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, SlicedAttnProcessor

import tiny
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.compilation import slices
from ppdiffusers_tome.patching.blocks import find_blocks
from zoo.specimen import TEXT_DIM, normal

PROCESSORS = [AttnProcessor, slices.SlicedProcessor, lambda: SlicedAttnProcessor(1)]


def equal_in_cells() -> paddle.Tensor:
    """A latent of 8 by 8 whose four values in a cell are equal, so that a cell's tokens are."""
    return normal(2, 8, 4, 4).repeat_interleave(2, axis=2).repeat_interleave(2, axis=3)


@paddle.no_grad()
def run(model: Any, x: paddle.Tensor, **given: Any) -> np.ndarray:
    return model(x, encoder_hidden_states=normal(x.shape[0], 5, TEXT_DIM, seed=3), **given).sample.numpy()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("make", PROCESSORS, ids=["plain", "cpu", "sliced"])
def test_merging_equal_tokens_changes_nothing_and_a_mask_stays_in_force(make: Any, masked: bool) -> None:
    """Whatever merges: groups are of one to four tokens."""
    model, x = tiny.transformer(attention_head_dim=8, num_layers=2), equal_in_cells()
    for block in model.transformer_blocks:
        block.attn1.processor = make()
    seen = np.ones((2, 8, 8), np.float32)
    seen[:, 2:6, 4:6] = 0  # whole cells
    given = {"attention_mask": paddle.to_tensor((1 - seen.reshape(2, 1, 64)) * -10000)} if masked else {}
    plain = run(model, x, **given)
    assert (np.abs(plain - run(model, x)).max() >= 1e-3) == masked
    assert np.abs(run(apply_tome(model, 0.6, method="keys"), x, **given) - plain).max() <= 1e-5
    assert np.abs(run(apply_tome(model, 0.6), x, **given) - plain).max() >= 1e-4


def cosine_scores(self: Any, query: Any, key: Any, seen: Any = None) -> paddle.Tensor:
    """Another's scores, which look at all channels."""
    unit = (F.normalize(each, axis=-1) for each in (query, key))
    scores = 10 * paddle.matmul(*unit, transpose_y=True)
    return F.softmax(scores if seen is None else scores + seen, axis=-1)


@pytest.mark.parametrize("in_class", [False, True])
def test_anothers_scores_get_queries_and_keys_as_they_are(in_class: bool) -> None:
    model, x = tiny.transformer(attention_head_dim=8, num_layers=2), equal_in_cells()
    for block in model.transformer_blocks:
        block.attn1.processor = AttnProcessor()
        if in_class:
            block.attn1.__class__ = type("OwnAttention", (Attention,), {"get_attention_scores": cosine_scores})
        else:
            block.attn1.get_attention_scores = MethodType(cosine_scores, block.attn1)
    before, plain = tiny.snapshot(model), run(model, x)
    merged = run(apply_tome(model, 0.6, method="keys"), x)
    assert np.abs(merged - plain).max() <= 2e-5
    assert tiny.snapshot(remove_tome(model)) == before


class WholeNumbers(paddle.nn.Layer):
    """A layer around a linear one, as for LoRA, with a weight in whole numbers."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.weight = base, paddle.zeros(base.weight.shape, dtype="int8")

    def forward(self, x: paddle.Tensor, *scale: float) -> paddle.Tensor:
        return self.base(x, *scale)


def test_queries_of_a_layer_without_a_plain_weight() -> None:
    unets = [apply_tome(tiny.unet(levels=1), 0.5, method="keys") for _ in range(2)]
    for block in find_blocks(unets[1]):
        block.layer.attn1.to_q = WholeNumbers(block.layer.attn1.to_q)
    assert np.array_equal(*map(tiny.run_unet, unets))
