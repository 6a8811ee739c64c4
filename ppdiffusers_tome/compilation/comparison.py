"""The comparison of a program's first result with Paddle's.

A program is made anew in every process, in seconds. The comparison takes a call of Paddle's, so it is made once, and
noted by an empty file in the user's cache folder, named by a hash of the model's contents, the kind of call, and what
computes it.
"""

import hashlib
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.compilation.mapped_weights import find_cache_folder
from ppdiffusers_tome.compilation.structure import take_tensors
from ppdiffusers_tome.machine import find_processor_name


def measure_difference(result: Any, expected: Any, *, pooled: bool = False) -> float:
    """Compare two outputs of a call.

    Returns:
        The root mean square of the difference, over that of what is expected; of several tensors the largest, or that
        of all their numbers. 0 without any, NaN where one has NaN.
    """
    found: list[paddle.Tensor] = []
    wanted: list[paddle.Tensor] = []
    is_alike = take_tensors(result, found) == take_tensors(expected, wanted)
    if not is_alike or any(x.shape != y.shape for x, y in zip(found, wanted, strict=True)):
        return float("nan")
    arrays = [[x.numpy().astype(np.float64).ravel() for x in tensors] for tensors in (found, wanted)]
    if pooled and wanted:
        arrays = [[np.concatenate(each)] for each in arrays]
    differences = [np.sqrt(np.mean((a - b) ** 2) / max(np.mean(b**2), 1e-24)) for a, b in zip(*arrays, strict=True)]
    return float(np.max(differences, initial=0))


def name_note_file(*parts: object) -> Path:
    """Return the file that notes a comparison.

    Raises:
        RuntimeError: of a user without a home.
    """
    versions = [getattr(sys.modules.get(name), "__version__", "") for name in ("openvino", "paddle", "ppdiffusers")]
    computes = versions, find_processor_name() or platform.machine()
    return find_cache_folder() / hashlib.sha256(repr((*parts, *computes)).encode()).hexdigest()
