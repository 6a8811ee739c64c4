"""Matching: sums and rotations in half precision, gradients, and what runs unmerged."""

import numpy as np
import paddle
import pytest

import tiny
from patching.contract import groups
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.matching import Matching, match_tokens, scatter_rows
from ppdiffusers_tome.merging.partition import random_partition
from ppdiffusers_tome.merging.rotary import RotaryEmbedding
from ppdiffusers_tome.patching.state.calls import BlockCall, DenoiserCall
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_sums_neither_overflow_nor_stop_growing(dtype: str) -> None:
    """2,000 tokens of 60 add up to 120,000: more than float16 holds, and bfloat16 would stop at 16,384."""
    order = paddle.arange(2000, dtype="int64").unsqueeze(0)
    one_group = Matching(paddle.zeros([2000], dtype="int32"), paddle.full([1, 1], 1 / 2000), order, 1, 2000, 1)
    merged = one_group.reduce(paddle.full([1, 2000, 4], 60.0).astype(dtype))
    assert merged.dtype == getattr(paddle, dtype)
    np.testing.assert_array_equal(merged.astype("float32").numpy(), np.full((1, 1, 4), 60.0))


def test_sums_begin_at_zero_on_a_device_that_keeps_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the NPU of PaddleCustomDevice does, whose ``scatter`` adds to the rows as they are."""

    def scatter(sums: paddle.Tensor, index: paddle.Tensor, rows: paddle.Tensor, overwrite: bool) -> paddle.Tensor:
        return paddle.index_add(sums, index, 0, rows)

    monkeypatch.setattr(paddle, "get_device", lambda: "npu:0")
    monkeypatch.setattr(paddle, "scatter_", scatter)
    monkeypatch.setattr(paddle, "empty", lambda shape, dtype: paddle.full(shape, 7.0, dtype))
    sums = scatter_rows(paddle.ones([4, 2]), paddle.to_tensor([0, 1, 0, 0]), paddle.zeros([2]), add=True)
    np.testing.assert_array_equal(sums.numpy(), [[3, 3], [1, 1]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_are_finite_at_tokens_of_zeros_and_of_opposites(dtype: str) -> None:
    x = tiny.array((1, 16, 8)).astype(dtype)
    x[0, 3] = 0
    matching = match_tokens(x, random_partition(Grid(4, 4), 2, 2, seed=0, timestep=None), 9)
    group = next(group for group in groups(matching) if len(group) == 2)
    x[0, int(group[1])] = -x[0, int(group[0])]
    x.stop_gradient = False
    merged = matching.reduce(x)
    (merged + 1).square().sum().backward()
    assert merged.dtype == x.dtype
    assert np.isfinite(merged.numpy()).all()
    assert np.isfinite(x.grad.numpy()).all()


def test_rotated_queries_keep_their_type() -> None:
    cosine, sine = tiny.array((12, 8)), tiny.array((12, 8), seed=1)
    for embedding in ((cosine, sine), paddle.complex(cosine[:, ::2].astype("float64"), sine[:, ::2].astype("float64"))):
        queries = tiny.array((2, 2, 12, 8)).astype("bfloat16")
        assert RotaryEmbedding(embedding, 12).grid_rotation.rotate(queries).dtype == paddle.bfloat16


def test_token_mismatch_warns_once_and_runs_unmerged() -> None:
    call = DenoiserCall(DenoiserState(ToMeConfig()), paddle.nn.Layer())

    def match(tokens: int) -> Matching | None:
        return BlockCall(call, "block", "", Layout(Grid(4, 4)), paddle.ones([1, tokens, 6])).reduction

    sentence = r"tokens of shape \[1, 17, 6\] where its latent has 4x4 tokens"
    with pytest.warns(UserWarning, match=sentence) as caught:
        assert [match(tokens) for tokens in (17, 17, 18)] == [None] * 3
    assert len(caught) == 1
    assert match(16) is not None
