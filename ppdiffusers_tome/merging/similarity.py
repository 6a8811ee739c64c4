"""Which destination each source is most like: nearly all of what a matching costs.

A matching has no gradient and ends in integers, so on a CPU numpy computes it, on the tensors' own memory: its argmax
reads ten times as many numbers a second as Paddle's, and on AMD its products are three times as fast as those of the
library that Paddle brings, which takes its slow path there. Elsewhere, and in a program that is recorded, Paddle does.
"""

from __future__ import annotations

import math

import numpy as np
import paddle

from ppdiffusers_tome.merging.matching import HALF, dim_size

_PRODUCTS = 2**20  # that numpy makes at once: 4 MB stay in the cache, and each turn is long enough not to be felt
_FEWEST_ROWS = 768  # of a turn, however many destinations there are: BLAS reads them all anew in every turn
_TINY = 1e-12


def find_nearest(
    x: paddle.Tensor, sources: paddle.Tensor, destinations: paddle.Tensor, num_tiles: int = 1
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Find the destination that each source is most like, among those that its tile is compared with.

    Args:
        x: ``[batch, tokens, channels]``, any float type.
        sources: int64 ``[num_tiles * S]``, tokens, tile by tile.
        destinations: int64 ``[num_tiles * D]``, tokens, tile by tile; several tiles may have the same.
        num_tiles: 1 compares all with all.

    Returns:
        The cosine, ``[batch, num_tiles * S]`` float32 (float64 for such tokens), and the destination's number in its
        tile, ``[batch, num_tiles * S]`` int64.
    """
    on_a_cpu = paddle.in_dynamic_mode() and x.place.is_cpu_place()
    return (_by_numpy if on_a_cpu else _by_paddle)(x, sources, destinations, num_tiles)


def gather_last_axis(x: paddle.Tensor, index: paddle.Tensor) -> paddle.Tensor:
    """``x[..., index]``: from ``[..., n]`` at int64 ``[..., k]``, or at ``[...]`` for one a row.

    Not ``take_along_axis``, which copies ``x`` and on Paddle 2.6 waits for the device to check the index.
    """
    num_rows = dim_size(x, 0) * math.prod(x.shape[1:-1])
    first = paddle.arange(0, num_rows * x.shape[-1], x.shape[-1], dtype="int64").unsqueeze(-1)
    places = index.reshape([-1, index.shape[-1] if index.ndim == x.ndim else 1]) + first
    return paddle.gather(x.flatten(), places.flatten()).reshape(index.shape)


def _by_paddle(
    x: paddle.Tensor, sources: paddle.Tensor, destinations: paddle.Tensor, num_tiles: int
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """All at once, as launches count."""
    batch, num_tokens, _ = x.shape

    def by_tile(rows: paddle.Tensor, index: paddle.Tensor) -> paddle.Tensor:
        return paddle.index_select(rows, index, axis=1).reshape([-1, index.shape[0] // num_tiles, rows.shape[2]])

    inverse_length = _inverse_lengths(x)
    if destinations.shape[0] < num_tokens:
        others = _unit(by_tile(x, destinations), by_tile(inverse_length, destinations))
    else:  # so small tiles that each destination is seen by several
        others = by_tile(_unit(x, inverse_length), destinations)
    begins, of_begins = by_tile(x, sources), by_tile(inverse_length, sources)
    # A source's own length does not change which destination is nearest, only how sources rank: scaling the highest
    # products, one number a source, is cheaper than scaling the sources. But products of long float16 could overflow.
    own_length = x.dtype != paddle.float16
    products = paddle.matmul(begins if own_length else _unit(begins, of_begins), others, transpose_y=True)
    best = products.argmax(axis=-1)
    # Reading the maximum at its place is cheaper than a second pass over all products.
    highest = gather_last_axis(products, best)
    highest = highest.astype("float32") if x.dtype in HALF else highest
    cosine = highest * of_begins.squeeze(-1) if own_length else highest
    shape = [batch, sources.shape[0]]
    return cosine.reshape(shape), best.reshape(shape)


def _unit(x: paddle.Tensor, inverse_length: paddle.Tensor) -> paddle.Tensor:
    """Tokens ``[groups, tokens, channels]`` at length one, of the same type."""
    return (x.astype("float32") * inverse_length).astype(x.dtype) if x.dtype in HALF else x * inverse_length


def _inverse_lengths(x: paddle.Tensor) -> paddle.Tensor:
    """One over each token's length, ``[batch, tokens, 1]``, in float32 at least.

    Squares are summed in float32: 65504, the largest float16, is reached by 256 channels of value 16.
    """
    wide = x.astype("float32") if x.dtype in HALF else x
    return paddle.rsqrt((wide * wide).sum(axis=-1, keepdim=True) + _TINY)


def _by_numpy(
    x: paddle.Tensor, sources: paddle.Tensor, destinations: paddle.Tensor, num_tiles: int
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """A few at a time, so that their products stay in the cache."""
    tokens = _array(x.astype("float32") if x.dtype in HALF else x)
    of_tile, others = (_array(each).reshape(num_tiles, -1) for each in (sources, destinations))
    (batch, _, channels), (_, num_sources), num_destinations = tokens.shape, of_tile.shape, others.shape[1]
    cosine = paddle.empty([batch, num_tiles * num_sources], dtype=x.dtype if x.dtype not in HALF else paddle.float32)
    best = paddle.empty([batch, num_tiles * num_sources], dtype="int64")
    shape = (batch, num_tiles, num_sources)
    cosines, numbers = _array(cosine).reshape(shape), _array(best).reshape(shape)
    # Products or, where tiles are small, the tokens themselves.
    longer, shorter = max(num_sources, num_destinations), min(num_sources, num_destinations)
    tiles = max(1, _PRODUCTS // (longer * max(shorter, channels)))
    rows = max(_FEWEST_ROWS, _PRODUCTS // num_destinations)
    with np.errstate(all="ignore"):  # latents may overflow, and then nothing is near
        for image in range(batch):
            inverse_length = _inverse_length(tokens[image])
            for tile in range(0, num_tiles, tiles):
                some = slice(tile, tile + tiles)
                ends = tokens[image].take(others[some], axis=0)
                ends *= inverse_length.take(others[some])[..., None]
                for row in range(0, num_sources, rows):
                    here = (image, some, slice(row, row + rows))
                    some_sources = of_tile[some, row : row + rows]
                    products = np.matmul(tokens[image].take(some_sources, axis=0), ends.transpose(0, 2, 1))
                    numbers[here] = found = products.argmax(axis=-1)
                    highest = np.take_along_axis(products, found[..., None], axis=-1)[..., 0]
                    cosines[here] = highest * inverse_length.take(some_sources)
    return cosine, best


def _array(x: paddle.Tensor) -> np.ndarray:
    """A tensor on the CPU as an array on the same memory, to read or, if nobody else has it, to write to."""
    return np.asarray(_Memory(x.detach().contiguous()))


class _Memory:
    """What numpy asks for; the array keeps this, and so the tensor.

    Not ``to_tensor`` and ``numpy()``, which copy, and of which the first loses a hundred bytes a call on Paddle 3.3.
    """

    def __init__(self, x: paddle.Tensor) -> None:
        self.tensor = x
        dtype = np.dtype(str(x.dtype).rsplit(".", 1)[-1])
        self.__array_interface__ = {
            "data": (x.data_ptr(), False), "shape": tuple(x.shape), "typestr": dtype.str, "version": 3,
        }  # fmt: skip


def _inverse_length(x: np.ndarray) -> np.ndarray:
    """One over the length of each row, ``[..., channels]`` to ``[...]``."""
    return 1 / np.sqrt(np.einsum("...c,...c->...", x, x) + x.dtype.type(_TINY))
