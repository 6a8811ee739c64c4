"""Masks of merged keys, held to plain arithmetic on each token."""

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome.merging.chosen_keys import ChosenKeys
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.masks import add_group_size_bias, reduce_key_mask
from ppdiffusers_tome.merging.matching import Matching, match_tokens
from ppdiffusers_tome.merging.partition import regular_partition

TOKENS, TEXT, HEADS = 12, 5, 2


def matching() -> Matching:
    return match_tokens(tiny.array((2, TOKENS, 6)), regular_partition(Grid(3, 4), 2, 2), 7)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("text_first", [True, False])
def test_a_group_is_left_out_with_any_of_its_tokens(text_first: bool, images: int) -> None:
    """Also where all images have one mask, and each image groups of its own."""
    found = matching()
    seen = np.random.default_rng(0).random((images, HEADS, 1, TEXT + TOKENS)) < 0.8
    of_all = np.broadcast_to(seen, (2, *seen.shape[1:]))
    own = of_all[..., TEXT:] if text_first else of_all[..., :TOKENS]
    num_others = of_all[..., :TEXT] if text_first else of_all[..., TOKENS:]
    rows = np.arange(2 * found.num_left).reshape(2, -1, 1)
    member = found.owner.numpy().reshape(2, 1, TOKENS) == rows
    whole = (own[:, :, :, None] | ~member[:, None, None]).all(axis=-1)
    expected = np.concatenate([num_others, whole] if text_first else [whole, num_others], axis=3)
    assert not np.array_equal(expected[0], expected[1])
    assert 0 < expected.sum() < expected.size
    assert np.array_equal(reduce_key_mask(paddle.to_tensor(seen), found, text_first=text_first).numpy(), expected)
    bias = paddle.to_tensor(np.where(seen, 0, -1e4).astype("float32"))
    assert np.array_equal(reduce_key_mask(bias, found, text_first=text_first).numpy() == 0, expected)


def test_a_mask_loses_the_columns_of_keys_that_are_not_there() -> None:
    kept = paddle.to_tensor([0, 2, 8, 10])
    seen = paddle.to_tensor(np.arange(TOKENS + TEXT).reshape(1, 1, 1, -1) != 13)
    got = reduce_key_mask(seen, ChosenKeys(kept, 2, TOKENS), text_first=False)
    assert got.numpy().reshape([2, -1]).tolist() == [[True] * 5 + [False] + [True] * 3] * 2


def test_sizes_are_added_to_a_mask() -> None:
    found = matching()
    seen = paddle.to_tensor(np.arange(TEXT + found.num_left).reshape(1, 1, 1, -1) != 2)
    got = add_group_size_bias(seen, found, TEXT, paddle.float16, text_first=True)
    assert (got.dtype, got.shape) == (paddle.float16, [2, 1, 1, TEXT + found.num_left])
    numbers = got.astype("float32").numpy()
    assert (numbers[..., 2] <= -9e3).all()
    assert np.isfinite(numbers).all()
    assert np.abs(numbers[:, 0, 0, TEXT:] - found.log_group_sizes.numpy()).max() <= 2e-3
