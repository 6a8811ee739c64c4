"""``proportional``: a merged token counts in attention as many times as it stands for tokens."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from ppdiffusers import Transformer2DModel
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, SlicedAttnProcessor

import tiny
from ppdiffusers_tome import NothingToMergeError, apply_tome, remove_tome
from ppdiffusers_tome.cpu.chunked_attention import ChunkedAttnProcessor
from ppdiffusers_tome.patching.blocks import find_blocks
from zoo.lvdm import SPECIMEN as LVDM
from zoo.sd3 import SPECIMEN as SD3
from zoo.specimen import TEXT_DIM, normal
from zoo.unidiffuser import SPECIMEN as UNIDIFFUSER

PROCESSORS = [AttnProcessor, lambda: ChunkedAttnProcessor(16), lambda: SlicedAttnProcessor(1)]


def transformer() -> Any:
    return tiny.build(
        Transformer2DModel, num_attention_heads=2, attention_head_dim=8, in_channels=8, num_layers=2,
        norm_num_groups=4, cross_attention_dim=TEXT_DIM,
    )  # fmt: skip


def equal_in_cells(batch: int = 2) -> paddle.Tensor:
    """A latent of 8 by 8 whose four values in a cell are equal, so that a cell's tokens are."""
    return normal(batch, 8, 4, 4).repeat_interleave(2, axis=2).repeat_interleave(2, axis=3)


@paddle.no_grad()
def run(model: Any, x: paddle.Tensor, **given: Any) -> np.ndarray:
    return model(x, encoder_hidden_states=normal(x.shape[0], 5, TEXT_DIM, seed=3), **given).sample.numpy()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("make", PROCESSORS, ids=["plain", "chunked", "sliced"])
def test_merging_equal_tokens_changes_nothing_and_a_mask_stays_in_force(make: Any, masked: bool) -> None:
    """Whatever merges: groups are of one to four tokens."""
    model, x = transformer(), equal_in_cells()
    for block in model.transformer_blocks:
        block.attn1.processor = make()
    seen = np.ones((2, 8, 8), np.float32)
    seen[:, 2:6, 4:6] = 0  # whole cells
    given = {"attention_mask": paddle.to_tensor((1 - seen.reshape(2, 1, 64)) * -10000)} if masked else {}
    plain = run(model, x, **given)
    assert (np.abs(plain - run(model, x)).max() >= 1e-3) == masked
    assert np.abs(run(apply_tome(model, 0.6, proportional=True), x, **given) - plain).max() <= 1e-5
    assert np.abs(run(apply_tome(model, 0.6), x, **given) - plain).max() >= 1e-4


def cosine_scores(self: Any, query: Any, key: Any, seen: Any = None) -> paddle.Tensor:
    """Another's scores, which look at all channels."""
    unit = (F.normalize(each, axis=-1) for each in (query, key))
    scores = 10 * paddle.matmul(*unit, transpose_y=True)
    return F.softmax(scores if seen is None else scores + seen, axis=-1)


@pytest.mark.parametrize("method", ["tome", "keys"])
@pytest.mark.parametrize("of_class", [False, True])
def test_anothers_scores_get_queries_and_keys_as_they_are(of_class: bool, method: str) -> None:
    model, x = transformer(), equal_in_cells()
    for block in model.transformer_blocks:
        block.attn1.processor = AttnProcessor()
        if of_class:
            block.attn1.__class__ = type("OwnAttention", (Attention,), {"get_attention_scores": cosine_scores})
        else:
            block.attn1.get_attention_scores = MethodType(cosine_scores, block.attn1)
    before, plain = tiny.snapshot(model), run(model, x)
    merged = run(apply_tome(model, 0.6, method=method, proportional=True), x)
    assert np.abs(merged - plain).max() <= 2e-5
    assert tiny.snapshot(remove_tome(model)) == before


class MultiQueryProcessor:
    """One head of keys and values for all heads of queries."""

    def __call__(self, attn: Any, hidden_states: paddle.Tensor, attention_mask: Any = None, **_: Any) -> paddle.Tensor:
        batch, tokens, _ = hidden_states.shape
        mask = attn.prepare_attention_mask(attention_mask, tokens, batch)
        query = attn.head_to_batch_dim(attn.to_q(hidden_states))
        key, value = (to(hidden_states)[..., : attn.head_dim].unsqueeze(1) for to in (attn.to_k, attn.to_v))
        seen = paddle.matmul(attn.get_attention_scores(query, key, mask), value)
        return attn.to_out[0](attn.batch_to_head_dim(seen))


@pytest.mark.parametrize("method", ["tome", "keys"])
def test_fewer_heads_of_keys_than_of_the_mask(method: str) -> None:
    model, x = transformer(), equal_in_cells()
    for block in model.transformer_blocks:
        block.attn1.processor = MultiQueryProcessor()
    plain = run(model, x)
    assert np.abs(run(apply_tome(model, 0.6, method=method, proportional=True), x) - plain).max() <= 1e-5


@pytest.mark.parametrize("method", ["tome", "todo"])
def test_tokens_before_the_grid_are_in_the_same_sequence(method: str) -> None:
    """UniDiffuser's text; so fewer keys of the grid would give it more weight, also where no queries merge."""
    model = UNIDIFFUSER.build()
    without, with_sizes = (
        UNIDIFFUSER.run(apply_tome(model, 0.5, method=method, proportional=on)).numpy() for on in (False, True)
    )
    assert np.abs(without - with_sizes).max() >= 1e-3


@pytest.mark.parametrize(
    ("build", "settings", "words"),
    [
        (SD3.build, dict(proportional=True), "proportional=True has no effect here, .* takes no mask"),
        (LVDM.build, dict(proportional=True), "proportional=True has no effect here, .* takes no mask"),
        (tiny.unet, dict(st=2), "st=2 merges tokens of several frames, .* leave st at 1"),
    ],
    ids=["sd3", "lvdm", "frames"],
)
def test_what_a_model_has_no_use_for_is_refused(build: Any, settings: dict[str, Any], words: str) -> None:
    model = build()
    before = tiny.snapshot(model)
    with pytest.raises(NothingToMergeError, match=words):
        apply_tome(model, 0.5, **settings)
    assert tiny.snapshot(model) == before


class OwnProcessor:
    """Attention without a mask."""

    def __call__(self, attn: Any, hidden_states: paddle.Tensor, *args: Any, **kwargs: Any) -> paddle.Tensor:
        layers = (attn.to_q, attn.to_k, attn.to_v)
        query, key, value = (attn.head_to_batch_dim(layer(hidden_states)) for layer in layers)
        weights = F.softmax(paddle.matmul(query, key, transpose_y=True) * attn.scale)
        return attn.to_out[0](attn.batch_to_head_dim(paddle.matmul(weights, value)))


@pytest.mark.parametrize("method", ["tome", "keys"])
def test_a_processor_that_prepares_no_mask_is_told(method: str) -> None:
    unets = [apply_tome(tiny.unet(levels=1), 0.5, method=method, proportional=given) for given in (False, True)]
    for unet in unets:
        for block in find_blocks(unet):
            block.block.attn1.set_processor(OwnProcessor())
    without = tiny.run_unet(unets[0])
    with pytest.warns(UserWarning, match="OwnProcessor does not call prepare_attention_mask.* no effect on it"):
        assert np.array_equal(tiny.run_unet(unets[1]), without)


class Wrapped(paddle.nn.Layer):
    """A layer around a linear one, as for LoRA; it has no weight of its own."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: paddle.Tensor, *scale: float) -> paddle.Tensor:
        return self.base(x, *scale)


class WholeNumbers(Wrapped):
    """A linear layer whose weight is in whole numbers."""

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        self.weight = paddle.zeros(base.weight.shape, dtype="int8")


@pytest.mark.parametrize("wrapper", [Wrapped, WholeNumbers])
@pytest.mark.parametrize("settings", [dict(method="keys"), dict(method="pool"), dict(proportional=True)])
def test_queries_of_a_layer_without_a_plain_weight(wrapper: Any, settings: dict[str, Any]) -> None:
    unets = [apply_tome(tiny.unet(levels=1), 0.5, **settings) for _ in range(2)]
    for block in find_blocks(unets[1]):
        block.block.attn1.to_q = wrapper(block.block.attn1.to_q)
    assert np.array_equal(*map(tiny.run_unet, unets))
