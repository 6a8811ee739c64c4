"""Matching: groups, means and masks; and that ToMe's method finds the most similar pairs."""

from __future__ import annotations

import warnings

import numpy as np
import paddle
import pytest
from ppdiffusers.models.attention_processor import Attention

import tiny
from ppdiffusers_tome import ToMeConfig, apply_tome
from ppdiffusers_tome.grid import Grid
from ppdiffusers_tome.matching import Matching
from ppdiffusers_tome.methods.tome import match
from ppdiffusers_tome.partition import random_partition, regular_partition
from ppdiffusers_tome.state import RunState

CASES = [
    (Grid(4, 4), 1, 1), (Grid(4, 4), 2, 8), (Grid(4, 4), 3, 12), (Grid(5, 7), 2, 17), (Grid(5, 7), 1, 29),
    (Grid(8, 8), 2, 33), (Grid(8, 8), 2, 48),
]  # fmt: skip


def matching_of(x: paddle.Tensor, grid: Grid, num_merged: int, seed: int = 0) -> Matching:
    return match(x, random_partition(grid, 2, 2, seed=seed, timestep=None), num_merged)


def groups(matching: Matching) -> list[np.ndarray]:
    """Token numbers of every row of the merged sequence, counted over the batch."""
    owner = matching.owner.numpy()
    return [np.flatnonzero(owner == row) for row in range(matching.batch * matching.num_left)]


@pytest.mark.parametrize(("grid", "batch", "num_merged"), CASES)
def test_groups_cover_every_token_once(grid: Grid, batch: int, num_merged: int) -> None:
    matching = matching_of(tiny.array((batch, grid.num_tokens, 6)), grid, num_merged)
    found = groups(matching)
    assert all(len(group) for group in found)
    assert np.allclose(1 / matching.inverse_count.numpy().ravel(), [len(group) for group in found])
    assert sum(map(len, found)) == batch * grid.num_tokens
    # A group belongs to one image.
    assert all(len(set(group // grid.num_tokens)) == 1 for group in found)
    assert matching.num_left == grid.num_tokens - num_merged


@pytest.mark.parametrize(("grid", "batch", "num_merged"), CASES)
def test_merge_gives_means_and_unmerge_gives_them_back(grid: Grid, batch: int, num_merged: int) -> None:
    x = tiny.array((batch, grid.num_tokens, 6))
    matching = matching_of(x, grid, num_merged)
    y = tiny.array((batch, grid.num_tokens, 9), seed=1)
    merged = matching.merge(y)
    assert merged.shape == [batch, matching.num_left, 9]
    rows = y.numpy().reshape(-1, 9)
    expected = np.stack([rows[group].mean(axis=0) for group in groups(matching)])
    assert np.abs(merged.numpy().reshape(-1, 9) - expected).max() <= 1e-6
    back = matching.unmerge(merged)
    assert back.shape == y.shape
    assert np.abs(back.numpy().reshape(-1, 9) - expected[matching.owner.numpy()]).max() <= 1e-6
    # Merging what was unmerged changes nothing: every group is its own mean.
    assert np.abs(matching.merge(back).numpy() - merged.numpy()).max() <= 1e-6


@pytest.mark.parametrize(("grid", "batch", "num_merged"), CASES)
def test_the_most_similar_sources_merge_into_their_most_similar_destinations(
    grid: Grid, batch: int, num_merged: int
) -> None:
    x = tiny.array((batch, grid.num_tokens, 6), seed=3)
    partition = regular_partition(grid, 2, 2)
    matching = match(x, partition, num_merged)
    sources, destinations = partition.sources.numpy(), partition.destinations.numpy()
    owner = matching.owner.numpy().reshape(batch, -1)
    for image, tokens in enumerate(x.numpy()):
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        cosine = unit[sources] @ unit[destinations].T
        order = np.argsort(-cosine.max(axis=1))
        assert len(set(owner[image][destinations])) == len(destinations)
        for source in order[:num_merged]:
            into = destinations[cosine[source].argmax()]
            assert owner[image][sources[source]] == owner[image][into]
        kept = owner[image][sources[order[num_merged:]]]
        assert len({*kept, *owner[image][destinations]}) == len(kept) + len(destinations)


def test_zero_tokens_give_no_nan() -> None:
    x = tiny.array((2, 16, 6)).numpy()
    x[0], x[1, ::3] = 0, 0
    matching = matching_of(paddle.to_tensor(x), Grid(4, 4), 9)
    assert np.isfinite(matching.inverse_count.numpy()).all()
    assert np.isfinite(matching.merge(paddle.to_tensor(x)).numpy()).all()
    assert sum(map(len, groups(matching))) == 32


def test_huge_and_tiny_tokens_are_ranked() -> None:
    x = tiny.array((1, 16, 6))
    expected = matching_of(x, Grid(4, 4), 7).owner.numpy()
    for scale in (1e-3, 1e15):
        assert np.array_equal(matching_of(x * scale, Grid(4, 4), 7).owner.numpy(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_sums_neither_overflow_nor_stop_growing(dtype: str) -> None:
    """2,000 tokens of 60 add up to 120,000: more than float16 holds, and bfloat16 would stop at 16,384."""
    one_group = Matching(paddle.zeros([2000], dtype="int32"), paddle.full([1, 1], 1 / 2000), 1, 2000, 1999)
    merged = one_group.merge(paddle.full([1, 2000, 4], 60.0).astype(dtype))
    assert merged.dtype == getattr(paddle, dtype)
    np.testing.assert_array_equal(merged.astype("float32").numpy(), np.full((1, 1, 4), 60.0))


class TestMask:
    GRID, BATCH = Grid(4, 4), 2
    MASKED = ((0, 3), (0, 4), (1, 15))

    @pytest.fixture
    def matching(self) -> Matching:
        return matching_of(tiny.array((self.BATCH, 16, 6)), self.GRID, 9)

    @pytest.fixture
    def mask(self) -> np.ndarray:
        mask = np.zeros((self.BATCH, 1, 16), np.float32)
        for image, token in self.MASKED:
            mask[image, 0, token] = -10000
        return mask

    def expected(self, matching: Matching) -> np.ndarray:
        tokens = {image * 16 + token for image, token in self.MASKED}
        rows = [-10000.0 if tokens & set(group.tolist()) else 0.0 for group in groups(matching)]
        return np.asarray(rows, np.float32).reshape(self.BATCH, -1)

    def test_group_with_a_masked_token_is_masked(self, matching: Matching, mask: np.ndarray) -> None:
        merged = matching.merge_mask(paddle.to_tensor(mask)).numpy()
        assert merged.shape == (self.BATCH, 1, matching.num_left)
        assert np.array_equal(merged[:, 0], self.expected(matching))

    def test_heads_and_queries_keep_their_places(self, matching: Matching, mask: np.ndarray) -> None:
        heads = np.repeat(mask, 3, axis=0)
        merged = matching.merge_mask(paddle.to_tensor(heads)).numpy()
        assert np.array_equal(merged, np.repeat(self.expected(matching)[:, None], 3, axis=0))
        queries = np.repeat(heads, 16, axis=1)
        merged = matching.merge_mask(paddle.to_tensor(queries)).numpy()
        assert merged.shape == (self.BATCH * 3, matching.num_left, matching.num_left)
        assert np.array_equal(merged[:, 4], np.repeat(self.expected(matching), 3, axis=0))

    def test_one_mask_serves_all_images(self, matching: Matching, mask: np.ndarray) -> None:
        merged = matching.merge_mask(paddle.to_tensor(mask[:1])).numpy()
        both = matching.merge_mask(paddle.to_tensor(np.repeat(mask[:1], 2, axis=0))).numpy()
        assert np.array_equal(merged, both)

    def test_one_masked_token_masks_a_large_group(self) -> None:
        """A mean of 1 masked token and 3,071 others would be -3, which masks nothing."""
        grid = Grid(64, 64)
        matching = match(paddle.ones([1, 4096, 2]), regular_partition(grid, 2, 2), 3072)
        largest = max(groups(matching), key=len)
        assert len(largest) > 1000
        mask = np.zeros((1, 1, 4096), np.float32)
        mask[0, 0, largest[-1]] = -10000
        merged = matching.merge_mask(paddle.to_tensor(mask)).numpy().ravel()
        assert sorted(merged)[:2] == [-10000, 0]

    def test_masked_content_does_not_reach_the_others(self, matching: Matching, mask: np.ndarray) -> None:
        attention = tiny.build(Attention, query_dim=6, heads=2, dim_head=4)
        bias = matching.merge_mask(paddle.to_tensor(mask))

        def attend(x: np.ndarray) -> np.ndarray:
            return attention(matching.merge(paddle.to_tensor(x)), attention_mask=bias).numpy()

        x = tiny.array((self.BATCH, 16, 6), seed=7).numpy()
        other = x.copy()
        for image, token in self.MASKED:
            other[image, token] += 5
        clean = self.expected(matching) == 0
        with paddle.no_grad():
            first, second = attend(x), attend(other)
        assert np.isfinite(second).all()
        assert np.abs(first[clean] - second[clean]).max() <= 1e-6
        assert np.abs(first[~clean] - second[~clean]).max() > 1e-3


class TestWarnings:
    def test_grid_smaller_than_a_cell_warns_once_and_runs_unmerged(self) -> None:
        unet = tiny.unet()
        plain = tiny.run_unet(unet)
        apply_tome(unet, 0.5, sx=32, sy=32, max_downsample=2)
        with pytest.warns(UserWarning, match=r"a grid of 16x16 tokens is smaller than one cell of 32x32") as caught:
            outputs = [tiny.run_unet(unet) for _ in range(2)]
        assert len([w for w in caught if "ToMe" in str(w.message)]) == 1
        assert all(np.array_equal(output, plain) for output in outputs)

    def test_only_the_coarse_level_runs_unmerged(self) -> None:
        unet = tiny.unet()
        expected = tiny.run_unet(apply_tome(tiny.unet(), 0.5, sx=16, sy=16, max_downsample=1))
        apply_tome(unet, 0.5, sx=16, sy=16, max_downsample=2)
        with pytest.warns(UserWarning, match="8x8 tokens is smaller than one cell of 16x16"):
            assert np.array_equal(tiny.run_unet(unet), expected)

    def test_token_mismatch_warns_once_and_runs_unmerged(self) -> None:
        run = RunState(ToMeConfig())
        run.begin_call(None)
        run.enter_host(Grid(4, 4), will_rerun=False)

        def matchings() -> list[Matching | None]:
            found = []
            for tokens in (17, 17, 18):
                run.enter_block(paddle.ones([1, tokens, 6]))
                found.append(run.matching)
            return found

        sentence = r"tokens of shape \[1, 17, 6\] where its picture has 4x4 tokens"
        with pytest.warns(UserWarning, match=sentence) as caught:
            assert matchings() == [None] * 3
        assert len(caught) == 1
        run.enter_block(paddle.ones([1, 16, 6]))
        assert run.matching is not None
        run.leave_block()
        assert run.matching is None

    def test_usual_call_warns_of_nothing(self) -> None:
        unet = apply_tome(tiny.unet(), 0.5, max_downsample=2, merge_crossattn=True, merge_mlp=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            tiny.run_unet(unet)
