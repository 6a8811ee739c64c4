"""The reading of a model's weights, whose hash tells whether they changed."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakSet

import numpy as np
import paddle
import xxhash

from ppdiffusers_tome.compilation.arrays import share_memory

# Outside of a pipeline, weights of so few bytes are read before every call, and more in at most this share of the time.
_FEW_BYTES, _READING_SHARE = 16 * 2**20, 0.03
_MANY_BYTES = 64 * 2**20  # So many are hashed in two threads.


class WeightReader:
    """Reads weights once in a pipeline's call, and elsewhere in little of the time."""

    def __init__(self, tensors: Sequence[paddle.Tensor]) -> None:
        self.hash = ""  # The hash of all numbers at the last reading.
        self._tensors = tensors
        self._next_reading = 0.0  # The time from which they are read again outside of a pipeline.
        self._read_in = WeakSet[Any]()  # The calls of pipelines in which they were read.

    def read(self, pipeline_call: Any) -> None:
        """Read the weights, if due; outside of a pipeline the call is None."""
        begin = time.perf_counter()
        if pipeline_call in self._read_in or (pipeline_call is None and begin < self._next_reading):
            return
        arrays = share_memory(*self._tensors)
        self.hash = hash_arrays(arrays)
        end, num_bytes = time.perf_counter(), sum(array.nbytes for array in arrays)
        self._next_reading = end + ((end - begin) / _READING_SHARE if num_bytes > _FEW_BYTES else 0)
        if pipeline_call is not None:
            self._read_in.add(pipeline_call)

    def request(self) -> None:
        """Have the weights read before the next call outside of a pipeline."""
        self._next_reading = 0.0


def hash_arrays(arrays: list[np.ndarray]) -> str:
    """Hash the numbers of arrays, a gigabyte in a tenth of a second."""
    if sum(array.nbytes for array in arrays) < _MANY_BYTES:
        return xxhash.xxh3_128_hexdigest(b"".join(xxhash.xxh3_128_digest(array.data) for array in arrays))
    with ThreadPoolExecutor(2) as pool:
        return xxhash.xxh3_128_hexdigest(b"".join(pool.map(xxhash.xxh3_128_digest, arrays)))
