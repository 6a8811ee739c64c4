"""The most similar destination of each source.

Near ties may be settled either way by another blocking, batch, machine or library, so destinations are compared by
their cosines and never by their numbers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome.merging import similarity
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.partition import random_partition
from ppdiffusers_tome.merging.similarity import find_nearest
from ppdiffusers_tome.merging.tiles import split_by_tile

# Grid, batch, channels and tile.
CASES = [(Grid(16, 16), 2, 8, None), (Grid(5, 7), 3, 40, None), (Grid(24, 24), 2, 320, 8), (Grid(13, 14), 1, 6, 4)]


def search_of(grid: Grid, tile: int | None) -> tuple[paddle.Tensor, paddle.Tensor, int]:
    partition = random_partition(grid, 2, 2, seed=0, timestep=paddle.to_tensor([500]))
    if tile is None:
        return partition.sources, partition.destinations, 1
    tiles = split_by_tile(partition, grid, tile, (2, 2, 1))
    return tiles.sources, tiles.destinations, tiles.indices.num_tiles


def cosines_of(x: paddle.Tensor, sources: paddle.Tensor, destinations: paddle.Tensor, num_tiles: int) -> np.ndarray:
    """Of every source with every destination of its tile, ``[batch, sources, D]``, in float64 and the plain way."""
    tokens = x.astype("float64").numpy()
    tokens = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    src, dst = (index.numpy().reshape(num_tiles, -1) for index in (sources, destinations))
    parts = [tokens[:, a] @ tokens[:, b].transpose(0, 2, 1) for a, b in zip(src, dst, strict=True)]
    return np.concatenate(parts, axis=1)


def check_found(x: paddle.Tensor, search: tuple, cosine: paddle.Tensor, nearest: paddle.Tensor) -> None:
    """The destinations found are as similar as the most similar, and the cosines are theirs."""
    all_cosines = cosines_of(x, *search)
    found = np.take_along_axis(all_cosines, nearest.numpy()[..., None], axis=-1)[..., 0]
    assert np.abs(found - all_cosines.max(axis=-1)).max() < 1e-6
    assert np.abs(cosine.numpy() - found).max() < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("grid", "batch", "channels", "tile"), CASES)
def test_the_nearest_is_found(grid: Grid, batch: int, channels: int, tile: int | None, dtype: str) -> None:
    x, search = tiny.array((batch, grid.num_tokens, channels)).astype(dtype), search_of(grid, tile)
    cosine, nearest = find_nearest(x, *search)
    assert (cosine.dtype, nearest.dtype) == (x.dtype, paddle.int64)
    check_found(x, search, cosine, nearest)


@pytest.mark.parametrize("tile", [None, 4])
def test_no_more_products_than_a_bound_are_in_memory_at_once(tile: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, search, sizes = tiny.array((2, 256, 8)), search_of(Grid(16, 16), tile), []
    matmul = paddle.matmul
    monkeypatch.setattr(similarity, "_MOST_PRODUCTS", 3000)

    def multiply(*args: Any, **kwargs: Any) -> paddle.Tensor:
        products = matmul(*args, **kwargs)
        sizes.append(products.size)
        return products

    monkeypatch.setattr(paddle, "matmul", multiply)
    check_found(x, search, *find_nearest(x, *search))
    assert len(sizes) > 1
    assert max(sizes) <= 3000


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tokens_with_a_common_part_are_ranked_in_half_precision(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's kernels, emulated: they compute in float32 and round what they return.

    The tokens are so long that no float16 holds their squares. With units and products in bfloat16, most of what
    ranking the sources gains was lost.
    """

    def round_result(operator: Callable[..., paddle.Tensor]) -> Callable[..., paddle.Tensor]:
        def run(x: paddle.Tensor, *arguments: Any, **keywords: Any) -> paddle.Tensor:
            wide = [
                each.astype("float32") if isinstance(each, paddle.Tensor) and each.dtype in similarity.HALF else each
                for each in (x, *arguments)
            ]
            result = operator(*wide, **keywords)
            return result.astype(x.dtype) if result.dtype == paddle.float32 else result

        return run

    side = 32
    search, draw = search_of(Grid(side, side), None), np.random.default_rng(0)
    coarse = paddle.to_tensor(draw.standard_normal((1, 320, 9, 9), np.float32))
    x = paddle.nn.functional.interpolate(coarse, size=[side, side], mode="bicubic")
    x = x + 0.1 * paddle.to_tensor(draw.standard_normal(x.shape).astype("float32"))
    x = x + 5 * paddle.to_tensor(draw.standard_normal((1, 320, 1, 1)).astype("float32"))
    x = 40 * x.flatten(2).transpose([0, 2, 1]).astype(dtype)
    for owner, name in ((paddle, "index_select"), (paddle, "gather"), (paddle, "matmul"), (paddle.Tensor, "argmax")):
        monkeypatch.setattr(owner, name, round_result(getattr(owner, name)))
    cosine, nearest = find_nearest(x, *search)
    monkeypatch.undo()
    assert cosine.dtype == paddle.float32
    all_cosines = cosines_of(x.astype("float32"), *search)[0]
    found = np.take_along_axis(all_cosines, nearest.numpy()[0][:, None], axis=-1)[:, 0]
    num_merged = side * side // 2
    exact = np.sort(all_cosines.max(axis=-1))[-num_merged:].mean()
    ranked = found[np.argsort(-cosine.numpy()[0])[:num_merged]].mean()
    assert exact - ranked < 0.1 * (exact - all_cosines.max(axis=-1).mean())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_matched_on_a_cpu(dtype: str) -> None:
    """Paddle multiplies none there, so tokens match as they do in float32."""
    x, grid = tiny.array((2, 256, 320)).astype(dtype), Grid(16, 16)
    partition = random_partition(grid, 2, 2, seed=0, timestep=paddle.to_tensor([500]))
    found, expected = (match_tokens(tokens, partition, 128) for tokens in (x, x.astype("float32")))
    assert found.owner.tolist() == expected.owner.tolist()
