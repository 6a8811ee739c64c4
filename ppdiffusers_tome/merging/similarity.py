"""The most similar destination of each source, a matching's main cost.

A matching has no gradient and ends in integers, so on a CPU numpy computes it, on the tensors' own memory: its argmax
reads ten times as many numbers a second as Paddle's, and on AMD its products are three times as fast as those of the
library that Paddle brings, which takes its slow path there. Elsewhere, and in a program that is traced, Paddle does.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import paddle

from ppdiffusers_tome.merging.tensor_ops import HALF, disable_autocast, gather_last_axis, widen

_MAX_PRODUCTS = 2**20  # of a slice: 4 MB stay in the cache, and the slice is long enough to hide what it costs
_MIN_ROWS = 768  # of a slice, however many destinations there are: BLAS reads all of those again for every slice
_TINY = 1e-12


def find_nearest(
    x: paddle.Tensor, sources: paddle.Tensor, destinations: paddle.Tensor, num_tiles: int = 1
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Find the most similar destination of each source in its tile.

    Args:
        x: ``[batch, tokens, channels]``, any float type.
        sources: int64 ``[num_tiles * S]``, tokens, tile by tile.
        destinations: int64 ``[num_tiles * D]``, tokens, tile by tile; several tiles may have the same.
        num_tiles: 1 compares all with all.

    Returns:
        The cosine, ``[batch, num_tiles * S]`` float32 (float64 for such tokens), and the destination's index in its
        tile, ``[batch, num_tiles * S]`` int64.

    Example, on a 4x4 grid cut into its upper and its lower half. Source 1 is most similar to its tile's destination 2,
    which has index 1 there:

        >>> x = paddle.to_tensor(np.repeat(np.eye(4, dtype=np.float32), 4, axis=0)).unsqueeze(0)  # a direction a row
        >>> x[0, 1] = x[0, 2] = 2 * x[0, 15]
        >>> sources = paddle.to_tensor([1, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15])
        >>> destinations = paddle.to_tensor([0, 2, 8, 10])
        >>> cosine, best = find_nearest(x, sources, destinations, num_tiles=2)
        >>> cosine.numpy()[0, :2].round(3).tolist(), best.numpy()[0, :2].tolist()
        ([1.0, 1.0], [1, 0])
    """
    on_a_cpu = paddle.in_dynamic_mode() and x.place.is_cpu_place()
    return (_find_by_numpy if on_a_cpu else _find_by_paddle)(x, sources, destinations, num_tiles)


def _find_by_paddle(
    x: paddle.Tensor, sources: paddle.Tensor, destinations: paddle.Tensor, num_tiles: int
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Compare all tiles at once, for few launches."""

    def take_tiles(rows: paddle.Tensor, index: paddle.Tensor) -> paddle.Tensor:
        """``[batch, tokens, channels]`` to ``[batch * num_tiles, tokens of a tile, channels]``."""
        tiles = paddle.index_select(rows, index, axis=1)
        return tiles.reshape([-1, index.shape[0] // num_tiles, rows.shape[2]])

    # Squares are summed in float32: 65504, the largest float16, is reached by 256 channels of value 16.
    wide = widen(x)
    inverse_length = paddle.rsqrt((wide * wide).sum(axis=-1, keepdim=True) + _TINY)
    src_inverse_length = None
    if x.dtype in HALF:
        # Always float16, whose 11 bits rank tokens that have a common part; the 8 bits of bfloat16 mostly rank its
        # rounding. Vectors of length one cannot overflow, nor can their products.
        unit = (wide * inverse_length).astype("float16")
        src, dst_unit = take_tiles(unit, sources), take_tiles(unit, destinations)
    else:
        # A source's own length does not change which destination is nearest, only how sources rank: scaling the best
        # products, one number a source, is cheaper than scaling the sources.
        src, src_inverse_length = take_tiles(x, sources), take_tiles(inverse_length, sources)
        if destinations.shape[0] < x.shape[1]:
            dst_unit = take_tiles(x, destinations) * take_tiles(inverse_length, destinations)
        else:  # tiles so small that each destination is seen by several
            dst_unit = take_tiles(x * inverse_length, destinations)
    with disable_autocast():
        products = paddle.matmul(src, dst_unit, transpose_y=True)  # [batch * num_tiles, S, D]
    best = products.argmax(axis=-1)
    # Reading the maximum at its place is cheaper than a second pass over all products.
    best_cos = widen(gather_last_axis(products, best))
    if src_inverse_length is not None:
        best_cos = best_cos * src_inverse_length.squeeze(-1)
    shape = [x.shape[0], sources.shape[0]]
    return best_cos.reshape(shape), best.reshape(shape)


def _find_by_numpy(
    x: paddle.Tensor, sources: paddle.Tensor, destinations: paddle.Tensor, num_tiles: int
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Compare slice by slice, so that products stay in the cache.

    A slice is several small tiles, or some sources of one large tile.
    """
    wide = widen(x)
    tokens = _share_memory(wide)
    src_index, dst_index = (_share_memory(index).reshape(num_tiles, -1) for index in (sources, destinations))
    (batch, _, channels), num_src, num_dst = tokens.shape, src_index.shape[1], dst_index.shape[1]
    cosine = paddle.empty([batch, num_tiles * num_src], dtype=wide.dtype)
    best = paddle.empty([batch, num_tiles * num_src], dtype="int64")
    cosine_out, best_out = (_share_memory(result).reshape(batch, num_tiles, num_src) for result in (cosine, best))
    # The most memory of a tile: its products or, where it is small, its tokens.
    tile_numbers = max(num_src, num_dst) * max(min(num_src, num_dst), channels)
    num_tiles_a_slice = max(1, _MAX_PRODUCTS // tile_numbers)
    num_src_a_slice = max(_MIN_ROWS, _MAX_PRODUCTS // num_dst)
    with np.errstate(all="ignore"):  # latents may overflow, and then nothing is near
        for image, image_cosine, image_best in zip(tokens, cosine_out, best_out, strict=True):
            inverse_length = 1 / np.sqrt(np.einsum("nc,nc->n", image, image) + image.dtype.type(_TINY))
            for first_tile in range(0, num_tiles, num_tiles_a_slice):
                tile_slice = slice(first_tile, first_tile + num_tiles_a_slice)
                dst_unit = image.take(dst_index[tile_slice], axis=0)  # [tiles, D, channels]
                dst_unit *= inverse_length.take(dst_index[tile_slice])[..., None]
                for first_src in range(0, num_src, num_src_a_slice):
                    src_slice = (tile_slice, slice(first_src, first_src + num_src_a_slice))
                    src = src_index[src_slice]
                    products = np.matmul(image.take(src, axis=0), dst_unit.transpose(0, 2, 1))  # [tiles, sources, D]
                    image_best[src_slice] = nearest = products.argmax(axis=-1)
                    best_cos = np.take_along_axis(products, nearest[..., None], axis=-1)[..., 0]
                    image_cosine[src_slice] = best_cos * inverse_length.take(src)
    return cosine, best


def _share_memory(x: paddle.Tensor) -> np.ndarray:
    """Return an array on the memory of a tensor on the CPU.

    Write to it only where nobody else has the tensor.
    """
    x = x.detach().contiguous()
    # Not ``to_tensor`` and ``numpy()``, which copy, and of which the first loses a hundred bytes a call on Paddle 3.3.
    memory = {
        "data": (x.data_ptr(), False), "shape": tuple(x.shape), "version": 3,
        "typestr": np.dtype(str(x.dtype).rsplit(".", 1)[-1]).str,
    }  # fmt: skip
    return np.asarray(SimpleNamespace(tensor=x, __array_interface__=memory))  # the array keeps the tensor alive
