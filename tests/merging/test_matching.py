"""Matching by similarity, anywhere or within tiles; sums, rotations and masks of merged tokens; what runs unmerged."""

import numpy as np
import paddle
import pytest

import tiny
from patching.helpers import groups
from ppdiffusers_tome import ToMeConfig, apply_tome
from ppdiffusers_tome.merging.chosen_keys import ChosenKeys
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.masks import add_group_size_bias, reduce_key_mask
from ppdiffusers_tome.merging.matching import Matching, match_tokens, scatter_rows
from ppdiffusers_tome.merging.partition import random_partition, regular_partition
from ppdiffusers_tome.merging.rotary import RotaryEmbedding
from ppdiffusers_tome.merging.tiles import split_by_tile
from ppdiffusers_tome.patching.state.block_call import BlockCall
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

TILE = 4
# Grid, stride, batch, how many tokens merge, and by what these are multiplied.
MATCHED = [
    (Grid(4, 4), (2, 2), 1, 1, 1), (Grid(4, 4), (2, 2), 2, 8, 1), (Grid(4, 4), (2, 2), 3, 12, 1),
    (Grid(5, 7), (2, 2), 2, 17, 1), (Grid(5, 7), (2, 2), 1, 29, 1), (Grid(8, 8), (2, 2), 2, 33, 1),
    (Grid(8, 8), (2, 2), 2, 48, 1), (Grid(11, 6), (2, 2), 2, 40, 1), (Grid(2, 17), (2, 2), 2, 11, 1),
    (Grid(13, 14), (2, 2), 2, 90, 1), (Grid(4, 4), (2, 2), 1, 7, 1e-3), (Grid(4, 4), (2, 2), 1, 7, 1e15),
    (Grid(13, 14), (3, 1), 2, 90, 1), (Grid(33, 36), (4, 2), 1, 900, 1), (Grid(5, 7), (3, 1), 1, 20, 1),
]  # fmt: skip


@pytest.mark.parametrize("tile", [None, TILE])
@pytest.mark.parametrize(("grid", "stride", "batch", "num_merged", "scale"), MATCHED)
def test_the_most_similar_merge(
    tile: int | None, grid: Grid, stride: tuple[int, int], batch: int, num_merged: int, scale: float
) -> None:
    """By cosines in float64: another library, machine or scale may settle near ties another way."""
    x, partition = tiny.array((batch, grid.num_tokens, 6), seed=3) * scale, regular_partition(grid, *stride)
    tiles = split_by_tile(partition, grid, tile, (*stride, 1))
    matching = match_tokens(x, partition, num_merged, tiles=tiles)
    sources, destinations = partition.sources.numpy(), partition.destinations.numpy()
    allowed = np.ones((len(sources), len(destinations)), bool)
    if tile is not None:
        allowed = np.stack([list_visible(grid, source, destinations, *stride) for source in sources])
    for tokens, owner in zip(x.numpy().astype("float64"), matching.owner.numpy().reshape(len(x), -1), strict=True):
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        cosine = np.where(allowed, unit[sources] @ unit[destinations].T, -2)
        highest, into = cosine.max(axis=1), owner[sources][:, None] == owner[destinations]
        merged = into.any(axis=1)
        assert len(set(owner[destinations])) == len(destinations)
        assert (merged.sum(), into.sum()) == (num_merged, num_merged)
        assert len(set(owner[sources][~merged])) == len(sources) - num_merged
        assert np.abs(cosine[merged][into[merged]] - highest[merged]).max() <= 1e-6
        assert highest[merged].min() >= highest[~merged].max(initial=-2) - 1e-6


def test_a_tile_as_large_as_the_grid_is_no_tile() -> None:
    whole = tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2))
    assert np.array_equal(tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2, tile=16)), whole)
    assert np.abs(tiny.run_unet(apply_tome(tiny.unet(), 0.5, max_downsample=2, tile=8)) - whole).max() > 1e-3


def list_visible(grid: Grid, source: int, destinations: np.ndarray, sx: int, sy: int) -> np.ndarray:
    """Which destinations a source is compared with, worked out on its own: of its tile and one cell around it.

    Tiles are whole cells, as even as can be, the rest beside them.
    """

    def find_seen(of: int, places: np.ndarray, cells: int, cell: int) -> np.ndarray:
        tiles = np.array_split(np.arange(cells), -(-cells // (TILE // cell)))
        own = next(tile for tile in tiles if min(of // cell, cells - 1) in tile)
        return (own[0] - 1 <= places // cell) & (places // cell <= own[-1] + 1)

    row, column = divmod(source, grid.width)
    return find_seen(row, destinations // grid.width, grid.height // sy, sy) & find_seen(
        column, destinations % grid.width, grid.width // sx, sx
    )


@pytest.mark.parametrize("tile", [None, 2, 4])
@pytest.mark.parametrize("frames", [2, 3, 6])
def test_a_stride_over_frames_merges_within_its_frames(tile: int | None, frames: int) -> None:
    grid = Grid(4, 6, frames)
    partition = random_partition(grid, 2, 2, seed=0, timestep=None, st=2)
    assert len(partition.destinations) == frames // 2 * 6
    tiles = split_by_tile(partition, grid, tile, (2, 2, 2))
    x, num_merged = tiny.array((2, grid.num_tokens, 8)), grid.num_merged(0.6)
    matching = match_tokens(x, partition, num_merged, tiles=tiles)
    frame = np.arange(grid.num_tokens) // grid.frame.num_tokens
    window = np.minimum(frame // 2, frames // 2 - 1)
    for owner in matching.owner.numpy().reshape(2, -1):
        for row in set(owner):
            assert len(set(window[owner == row])) == 1
        assert any(len(set(frame[owner == row])) > 1 for row in set(owner))


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
        return BlockCall(call, call.denoiser, "", Layout(Grid(4, 4)), paddle.ones([1, tokens, 6])).reduction

    sentence = r"tokens of shape \[1, 17, 6\] where its latent has 4x4 tokens"
    with pytest.warns(UserWarning, match=sentence) as caught:
        assert [match(tokens) for tokens in (17, 17, 18)] == [None] * 3
    assert len(caught) == 1
    assert match(16) is not None


TOKENS, TEXT, HEADS = 12, 5, 2


def match_twelve() -> Matching:
    return match_tokens(tiny.array((2, TOKENS, 6)), regular_partition(Grid(3, 4), 2, 2), 7)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("text_first", [True, False])
def test_a_group_is_left_out_with_any_of_its_tokens(text_first: bool, images: int) -> None:
    """Also where all images have one mask, and each image groups of its own."""
    found = match_twelve()
    seen = np.random.default_rng(0).random((images, HEADS, 1, TEXT + TOKENS)) < 0.8
    of_all = np.broadcast_to(seen, (2, *seen.shape[1:]))
    seen_tokens = of_all[..., TEXT:] if text_first else of_all[..., :TOKENS]
    seen_text = of_all[..., :TEXT] if text_first else of_all[..., TOKENS:]
    rows = np.arange(2 * found.num_left).reshape(2, -1, 1)
    member = found.owner.numpy().reshape(2, 1, TOKENS) == rows
    whole = (seen_tokens[:, :, :, None] | ~member[:, None, None]).all(axis=-1)
    expected = np.concatenate([seen_text, whole] if text_first else [whole, seen_text], axis=3)
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
    found = match_twelve()
    seen = paddle.to_tensor(np.arange(TEXT + found.num_left).reshape(1, 1, 1, -1) != 2)
    got = add_group_size_bias(seen, found, TEXT, paddle.float16, text_first=True)
    assert (got.dtype, got.shape) == (paddle.float16, [2, 1, 1, TEXT + found.num_left])
    numbers = got.astype("float32").numpy()
    assert (numbers[..., 2] <= -9e3).all()
    assert np.isfinite(numbers).all()
    assert np.abs(numbers[:, 0, 0, TEXT:] - found.log_group_sizes.numpy()).max() <= 2e-3
