"""Which destination is nearest: the same by numpy, which a CPU uses, as by Paddle, which all else uses."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppdiffusers_tome.merging import similarity as module
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.partition import random_partition
from ppdiffusers_tome.merging.similarity import find_nearest
from ppdiffusers_tome.merging.tiles import cut_into_tiles, split_by_tile

# Grid, batch, channels and tile.
CASES = [(Grid(16, 16), 2, 8, None), (Grid(5, 7), 3, 40, None), (Grid(24, 24), 2, 320, 8), (Grid(13, 14), 1, 6, 4)]


def tokens_of(grid: Grid, batch: int, channels: int, dtype: str = "float32") -> paddle.Tensor:
    drawn = np.random.default_rng(7).standard_normal((batch, grid.num_tokens, channels), np.float32)
    return paddle.to_tensor(drawn).astype(dtype)


def asked_of(grid: Grid, tile: int | None) -> tuple[paddle.Tensor, paddle.Tensor, int]:
    partition = random_partition(grid, 2, 2, seed=0, timestep=paddle.to_tensor([500]))
    if tile is None:
        return partition.sources, partition.destinations, 1
    tiled = split_by_tile(partition, cut_into_tiles(grid, 2, 2, tile))
    return tiled.sources, tiled.destinations, tiled.num_tiles


def cosines_of(
    x: paddle.Tensor, sources: paddle.Tensor, destinations: paddle.Tensor, num_tiles: int
) -> np.ndarray:  # fmt: skip
    """Of every source with every destination of its tile, ``[batch, sources, D]``, in float64 and the plain way."""
    tokens = x.astype("float64").numpy()
    tokens = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    of_tile, others = (each.numpy().reshape(num_tiles, -1) for each in (sources, destinations))
    parts = [tokens[:, a] @ tokens[:, b].transpose(0, 2, 1) for a, b in zip(of_tile, others, strict=True)]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("find", [find_nearest, module._find_by_numpy, module._find_by_paddle])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("grid", "batch", "channels", "tile"), CASES)
def test_the_nearest_is_found(find, grid: Grid, batch: int, channels: int, tile: int | None, dtype: str) -> None:
    x, asked = tokens_of(grid, batch, channels, dtype), asked_of(grid, tile)
    cosine, best = find(x, *asked)
    assert (cosine.dtype, best.dtype) == (x.dtype, paddle.int64)
    all_cosines = cosines_of(x, *asked)
    assert np.abs(cosine.numpy() - all_cosines.max(axis=-1)).max() < 1e-6
    # Near ties may be settled either way.
    found = np.take_along_axis(all_cosines, best.numpy()[..., None], axis=-1)[..., 0]
    assert np.abs(found - all_cosines.max(axis=-1)).max() < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_compared_in_float32(dtype: str) -> None:
    """So long tokens, whose squares no float16 holds, rank by their direction."""
    grid = Grid(16, 16)
    x = tokens_of(grid, 2, 320).astype(dtype) * 40
    cosine, best = find_nearest(x, *asked_of(grid, None))
    wide_cosine, wide_best = find_nearest(x.astype("float32"), *asked_of(grid, None))
    assert cosine.dtype == paddle.float32
    assert np.array_equal(cosine.numpy(), wide_cosine.numpy())
    assert np.array_equal(best.numpy(), wide_best.numpy())


@pytest.mark.parametrize("at_once", [1, 3000, 2**30])
@pytest.mark.parametrize(("grid", "batch", "channels", "tile"), CASES)
def test_few_at_once_find_the_same_as_all(
    grid: Grid, batch: int, channels: int, tile: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, asked = tokens_of(grid, batch, channels), asked_of(grid, tile)
    cosine, best = find_nearest(x, *asked)
    monkeypatch.setattr(module, "_MAX_PRODUCTS", at_once)
    monkeypatch.setattr(module, "_MIN_ROWS", 7)
    few_cosine, few_best = find_nearest(x, *asked)
    assert np.abs(few_cosine.numpy() - cosine.numpy()).max() < 1e-6
    assert np.array_equal(few_best.numpy(), best.numpy())


def test_tokens_that_are_a_view_are_read_as_they_are() -> None:
    """Transposed and sliced tensors share memory on Paddle 3, and numpy reads memory."""
    grid = Grid(16, 16)
    x, asked = tokens_of(grid, 3, 8), asked_of(grid, None)
    expected = find_nearest(x[1:].clone(), *asked)[1].numpy()
    channels_first = x.transpose([0, 2, 1]).clone()
    for view in (x[1:], channels_first.transpose([0, 2, 1])[1:]):
        assert np.array_equal(find_nearest(view, *asked)[1].numpy(), expected)


def test_a_tensor_with_gradients_is_only_read() -> None:
    grid = Grid(16, 16)
    x = tokens_of(grid, 2, 8)
    before = x.numpy().copy()
    x.stop_gradient = False
    cosine, _ = find_nearest(x * 1, *asked_of(grid, None))
    assert cosine.stop_gradient
    assert np.array_equal(x.numpy(), before)


@pytest.mark.parametrize("tile", [None, 8])
def test_what_overflowed_says_nothing(tile: int | None, recwarn: pytest.WarningsRecorder) -> None:
    grid = Grid(16, 16)
    x = tokens_of(grid, 1, 8)
    x[:, 3] = float("inf")
    x[:, 200] = float("nan")
    _, best = find_nearest(x, *asked_of(grid, tile))
    assert best.numpy().min() >= 0
    assert not recwarn.list
