"""Masks of attention merge as tokens do."""

from __future__ import annotations

import pytest

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.masks import reduce_key_mask
from ppdiffusers_tome.merging.matchers import build_matcher
from ppdiffusers_tome.merging.partition import regular_partition
from zoo.specimen import normal


@pytest.mark.parametrize("boolean", [False, True])
def test_a_mask_for_all_images_merges_with_the_tokens_of_each(boolean: bool) -> None:
    grid, tokens = Grid(4, 4), normal(2, 16, 8)
    matching = build_matcher(regular_partition(grid, 2, 2), grid, 8)(tokens)
    seen = normal(1, 4, 1, 16, seed=1) > -1
    mask = seen if boolean else (1 - seen.astype("float32")) * -1e4
    expected = reduce_key_mask(mask.expand([2, 4, 1, 16]), matching, text_first=False)
    got = reduce_key_mask(mask, matching, text_first=False)
    assert got.shape == expected.shape == [2, 4, 1, 8]
    assert bool((got == expected).all())
    assert not bool((expected[0] == expected[1]).all())
