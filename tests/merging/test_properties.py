"""What holds of partitions, matchings and merging whatever comes: any grid, stride, ratio, batch, type and numbers."""

from dataclasses import dataclass, replace

import numpy as np
import paddle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from patching.helpers import groups
from ppdiffusers_tome.merging.chosen_keys import ChosenKeys, select_key_tokens
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import Matching, match_tokens
from ppdiffusers_tome.merging.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.merging.tiles import split_by_tile


def computes(dtype: str) -> bool:
    """Whether this device gathers that type: Paddle's CPU has float16 only to convert it."""
    try:
        paddle.gather(paddle.ones([1, 1]).astype(dtype), paddle.zeros([1], dtype="int32"))
    except RuntimeError:
        return False
    return True


# Half precision has no products on a CPU, so groups are found in these; merged are all.
EXACT_TYPES = ("float32", "float64")
ALL_TYPES = (*EXACT_TYPES, *filter(computes, ("float16", "bfloat16")))
# Of a mean of numbers near 1.
TOLERANCE = {"float32": 1e-5, "float64": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}
# No numbers, and what overflows on the way to a length.
HARSH = (np.nan, np.inf, -np.inf, 1e30, -1e38, 1e-30, 0.0)


@dataclass(frozen=True)
class Case:
    """A grid cut by a stride, and how many of its sources merge."""

    grid: Grid
    sx: int
    sy: int
    num_merged: int
    batch: int
    prefix: int
    partition: Partition
    seed: int

    @property
    def num_tokens(self) -> int:
        return self.prefix + self.grid.num_tokens

    def tokens(self, dtype: str, channels: int = 5) -> paddle.Tensor:
        """Normal numbers, some tokens alike and some zero."""
        draw = np.random.default_rng(self.seed)
        x = draw.standard_normal((self.batch, self.num_tokens, channels))
        x[:, draw.integers(0, self.num_tokens, self.num_tokens // 3)] = x[:, :1]
        x[:, draw.integers(0, self.num_tokens, self.num_tokens // 8)] = 0
        return paddle.to_tensor(x.astype("float32")).astype(dtype)

    def match(self, x: paddle.Tensor, tile: int | None = None) -> Matching:
        tiles = split_by_tile(self.partition, self.grid, tile, (self.sx, self.sy, 1))
        return match_tokens(x, self.partition, self.num_merged, tiles=tiles)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Grid, int, int, Partition]:
    """Any grid of at least a cell, with a stride and its sources and destinations."""
    sx, sy = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    assume(sx * sy > 1)
    grid = Grid(draw(st.integers(sy, 23)), draw(st.integers(sx, 23)))
    if draw(st.booleans()):
        return grid, sx, sy, regular_partition(grid, sx, sy)
    seed = draw(st.integers(0, 2**63 - 1))
    timestep = draw(st.none() | st.floats(-1e4, 1e6, width=32))
    step = None if timestep is None else paddle.to_tensor(timestep, dtype="float32")
    return grid, sx, sy, random_partition(grid, sx, sy, seed=seed, timestep=step)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    grid, sx, sy, partition = draw(partitions())
    prefix = draw(st.sampled_from([0, 0, 1, 3]))
    num_merged = draw(st.integers(1, partition.sources.shape[0]))
    seed = draw(st.integers(0, 2**32))
    return Case(grid, sx, sy, num_merged, draw(st.integers(1, 3)), prefix, partition.shift(prefix), seed)


def tiles(case: Case) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(max(case.sx, case.sy), 12)


def to_float(x: paddle.Tensor) -> np.ndarray:
    """Tokens of any type, ``[rows, channels]`` float64."""
    wide = x if x.dtype == paddle.float64 else x.astype("float32")
    return wide.numpy().astype(np.float64).reshape(-1, x.shape[-1])


def check_groups(case: Case, matching: Matching, num_merged: int) -> list[np.ndarray]:
    """Every token is in one group, no group is empty or of two images, and the counts add up to all tokens."""
    found = groups(matching)
    owner, left = matching.owner.numpy(), case.num_tokens - num_merged
    assert matching.num_left == left
    assert owner.shape == (case.batch * case.num_tokens,)
    assert ((owner >= 0) & (owner < case.batch * left)).all()
    assert min(map(len, found)) >= 1
    counts = 1 / matching.inverse_count.numpy().astype(np.float64).ravel()
    assert np.allclose(counts, [len(group) for group in found], rtol=1e-6)
    assert np.allclose(counts.reshape(case.batch, left).sum(axis=1), case.num_tokens)
    assert np.array_equal(owner // left, np.repeat(np.arange(case.batch), case.num_tokens))
    # Of each group the token that goes on when one alone does.
    kept = (matching.positions.numpy() + np.arange(case.batch)[:, None] * case.num_tokens).ravel()
    assert np.array_equal(owner[kept], np.arange(case.batch * left))
    destinations = set(case.partition.destinations.tolist())
    for group, keeper in zip(found, kept, strict=True):
        # Only sources merge: each group is a destination with its sources, or one token.
        of_group = {int(token) % case.num_tokens for token in group}
        assert len(of_group & destinations) <= 1
        assert len(of_group) == 1 or of_group & destinations == {int(keeper) % case.num_tokens}
        assert len(of_group) == 1 or min(of_group) >= case.prefix
    return found


class TestMatching:
    @pytest.mark.filterwarnings("error")
    @settings(max_examples=240)
    @given(cases(), st.lists(st.sampled_from(HARSH)), st.data())
    def test_groups_hold_every_token_once(self, case: Case, harsh: list[float], data: st.DataObject) -> None:
        """Latents that overflowed give a bad image; they must not name rows that do not exist."""
        x = spoil_tokens(case, harsh, data.draw(st.sampled_from(EXACT_TYPES)))
        check_groups(case, case.match(x, data.draw(tiles(case))), case.num_merged)

    @given(cases(), st.data())
    def test_unmerging_a_merge_keeps_the_mean_of_each_group(self, case: Case, data: st.DataObject) -> None:
        dtype = data.draw(st.sampled_from(ALL_TYPES))
        matching = case.match(case.tokens("float32"), data.draw(tiles(case)))
        y = case.tokens(dtype, channels=data.draw(st.integers(1, 6)))
        merged = matching.reduce(y)
        back = matching.restore(merged)
        assert merged.shape == [case.batch, matching.num_left, y.shape[2]]
        assert (merged.dtype, back.dtype, back.shape) == (y.dtype, y.dtype, y.shape)
        before, after, rows = to_float(y), to_float(back), to_float(merged)
        for row, group in enumerate(groups(matching)):
            mean = before[group].mean(axis=0)
            assert np.abs(rows[row] - mean).max() <= TOLERANCE[dtype]
            assert (after[group] == rows[row]).all()
            assert len(group) > 1 or (rows[row] == before[group]).all()  # a token that did not merge
        if dtype == "float64":
            assert np.abs(to_float(matching.reduce(back)) - rows).max() <= 1e-6

    @given(cases(), st.data())
    def test_a_group_is_masked_when_one_of_its_tokens_is(self, case: Case, data: st.DataObject) -> None:
        matching = case.match(case.tokens("float32"), data.draw(tiles(case)))
        if data.draw(st.booleans()):
            matching = replace(matching, keeps_queries=True)
        heads, queries = data.draw(st.sampled_from([(1, False), (2, False), (2, True)]))
        out = np.random.default_rng(case.seed).random((case.batch, case.num_tokens)) < data.draw(st.floats(0, 1))
        rows = case.num_tokens if queries else 1
        bias = np.repeat(np.repeat(np.where(out, -10000.0, 0.0)[:, None], heads, axis=0), rows, axis=1)
        merged = matching.reduce_mask(paddle.to_tensor(bias.astype("float32"))).numpy()
        expected = np.array([out.ravel()[group].any() for group in groups(matching)]).reshape(case.batch, 1, -1)
        expected = np.where(expected, -10000, 0).repeat(heads, axis=0)
        rows = matching.num_left if queries and not matching.keeps_queries else rows
        assert merged.shape == (case.batch * heads, rows, matching.num_left)
        assert np.array_equal(merged, np.broadcast_to(expected, merged.shape))


def spoil_tokens(case: Case, harsh: list[float], dtype: str) -> paddle.Tensor:
    """The tokens of a case, some of them all of one number that is none or hardly one."""
    x = case.tokens("float32").numpy()
    draw = np.random.default_rng(case.seed + 1)
    for number in harsh:
        x[draw.integers(0, case.batch), draw.integers(0, case.num_tokens, 1 + case.num_tokens // 2)] = number
    return paddle.to_tensor(x).astype(dtype)


class TestKeys:
    @given(cases(), st.sampled_from(ALL_TYPES))
    def test_keys_are_tokens_spread_evenly_and_among_them_all_destinations(self, case: Case, dtype: str) -> None:
        y = case.tokens(dtype)
        keys = ChosenKeys(select_key_tokens(case.partition, case.num_merged), case.batch, case.num_tokens)
        chosen = keys.kept.numpy()
        assert len(set(chosen)) == len(chosen) == keys.num_left == case.num_tokens - case.num_merged
        assert {*range(case.prefix), *case.partition.destinations.tolist()} <= set(chosen)
        by_cell = np.isin(case.prefix + case.grid.cells(case.sx, case.sy)[0], chosen).sum(axis=1)
        assert by_cell.max() - by_cell.min() <= 1
        assert ((chosen >= 0) & (chosen < case.num_tokens)).all()
        whole = to_float(y).reshape([case.batch, case.num_tokens, -1])
        merged = to_float(keys.reduce(y)).reshape([case.batch, keys.num_left, -1])
        assert np.array_equal(merged, whole[:, chosen])
        assert keys.positions.tolist() == [chosen.tolist()]

    def test_the_same_tokens_of_every_frame_give_keys(self) -> None:
        of_a_frame = np.array([0, 2, 4, 12, 14, 16])
        kept = select_key_tokens(regular_partition(Grid(4, 6), 2, 2), 18, frames=3)
        assert kept.tolist() == [*of_a_frame, *(of_a_frame + 24), *(of_a_frame + 48)]

    @pytest.mark.parametrize(("stride", "side"), [(3, 16), (3, 20), (5, 12)])
    def test_all_tokens_give_keys_equally_often(self, stride: int, side: int) -> None:
        """With a stride of 3, the last of 16 columns and rows have no destination."""
        grid, num_steps = Grid(side, side), 1500
        dropped, counts = grid.num_merged(1 - 1 / stride**2), np.zeros([side, side])
        for step in range(num_steps):
            partition = random_partition(grid, stride, stride, seed=1, timestep=paddle.to_tensor([step / 3]))
            chosen = select_key_tokens(partition, dropped).numpy()
            counts[np.divmod(chosen, side)] += 1
        expected = num_steps * (grid.num_tokens - dropped) / grid.num_tokens
        assert np.abs(counts / expected - 1).max() < 0.5
        whole = side - side % stride
        outside = counts[whole:].sum() + counts[:whole, whole:].sum()
        assert outside / counts.sum() == pytest.approx(1 - whole**2 / side**2, rel=0.15)
