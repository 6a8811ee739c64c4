"""The most similar destination of each source, a matching's main cost.

All tiles are compared at once, for few launches.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import paddle

HALF = (paddle.float16, paddle.bfloat16)
_TINY = 1e-12
_MOST_PRODUCTS = 2**24  # at once on a CPU; 64 MiB in float32


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

        >>> x = paddle.eye(4).repeat_interleave(4, axis=0).unsqueeze(0)  # a direction a row
        >>> x[0, 1] = x[0, 2] = 2 * x[0, 15]
        >>> sources = paddle.to_tensor([1, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15])
        >>> destinations = paddle.to_tensor([0, 2, 8, 10])
        >>> cosine, nearest = find_nearest(x, sources, destinations, num_tiles=2)
        >>> cosine.numpy()[0, :2].round(3).tolist(), nearest.numpy()[0, :2].tolist()
        ([1.0, 1.0], [1, 0])
    """
    # Squares are summed in float32: 65504, the largest float16, is reached by 256 channels of value 16.
    is_half = x.dtype in HALF
    wide = x.astype("float32") if is_half else x
    inverse_length = paddle.rsqrt((wide * wide).sum(axis=-1, keepdim=True) + _TINY)
    take = partial(paddle.index_select, axis=1)
    if is_half:
        # Always float16, whose 11 bits rank tokens that have a common part; the 8 bits of bfloat16 mostly rank its
        # rounding. Vectors of length one cannot overflow, nor can their products.
        unit = (wide * inverse_length).astype("float16")
        source_tokens, unit_destinations = take(unit, sources), take(unit, destinations)
    else:
        # A source's own length does not change which destination is nearest, only how sources rank: scaling the best
        # products, one number a source, is cheaper than scaling the sources.
        source_tokens = take(x, sources)
        unit_destinations = take(x, destinations) * take(inverse_length, destinations)
    # A tile is compared as an image of its own.
    source_tokens = source_tokens.reshape([-1, sources.shape[0] // num_tiles, x.shape[2]])
    unit_destinations = unit_destinations.reshape([-1, destinations.shape[0] // num_tiles, x.shape[2]])
    with _disable_autocast():
        cosine, nearest = _find_largest(source_tokens, unit_destinations)
    shape = [x.shape[0], sources.shape[0]]
    cosine = cosine.reshape(shape)
    cosine = cosine.astype("float32") if is_half else cosine * take(inverse_length, sources).reshape(shape)
    return cosine, nearest.reshape(shape)


def _find_largest(
    source_tokens: paddle.Tensor, unit_destinations: paddle.Tensor
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Find the largest product of each source, and its destination."""
    # On a CPU some sources at a time, as all products of a large image take gigabytes. A GPU would wait for launches.
    num_sources = source_tokens.shape[1]
    at_once = max(1, _MOST_PRODUCTS // (source_tokens.shape[0] * unit_destinations.shape[1]))
    if at_once < num_sources and paddle.in_dynamic_mode() and source_tokens.place.is_cpu_place():
        starts = range(0, num_sources, at_once)
        parts = [_find_largest(source_tokens[:, start : start + at_once], unit_destinations) for start in starts]
        cosines, indices = zip(*parts, strict=True)
        return paddle.concat(cosines, axis=1), paddle.concat(indices, axis=1)
    products = paddle.matmul(source_tokens, unit_destinations, transpose_y=True)  # [batch * num_tiles, S, D]
    nearest = products.argmax(axis=-1)
    # Reading the maximum at its place is cheaper than a second pass over all products. (`take_along_axis` copies them,
    # and on Paddle 2.6 waits for the device to check the index.) In a program the place, a number up to the number of
    # all products, would be more than a compiler's float32 holds.
    if not paddle.in_dynamic_mode():
        return products.max(axis=-1), nearest
    row_starts = paddle.arange(0, nearest.size * products.shape[2], products.shape[2], dtype="int64")
    return paddle.gather(products.flatten(), nearest.flatten() + row_starts).reshape(nearest.shape), nearest


def _disable_autocast() -> AbstractContextManager[None]:
    """Return a context without ``paddle.amp.auto_cast``, which rounds every product."""
    if hasattr(paddle, "is_autocast_enabled"):
        is_enabled = paddle.is_autocast_enabled()
    else:  # Paddle 2.6
        tracer = paddle.framework._dygraph_tracer()
        is_enabled = tracer is not None and tracer._amp_level != paddle.base.core.AmpLevel.O0
    return paddle.amp.auto_cast(enable=False) if is_enabled else nullcontext()  # entering the former takes 50 us
