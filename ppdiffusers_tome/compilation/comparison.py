"""The comparison of a program's first result with Paddle's.

A program is made anew in every process, in seconds. The comparison takes a call of Paddle's, so it is made once, and
noted by an empty file in the user's cache folder, named by a hash of the model's contents, the kind of call, and what
computes it.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.compilation.cache_folder import find_cache_folder
from ppdiffusers_tome.compilation.model_call import CallOutputs, ModelCall
from ppdiffusers_tome.compilation.slices import compute_in_slices
from ppdiffusers_tome.compilation.structure import take_tensors
from ppdiffusers_tome.compilation.twin import TwinCall
from ppdiffusers_tome.errors import UncompilableError
from ppdiffusers_tome.machine import find_processor_name
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.version import __version__

# The largest difference of a program's result from Paddle's with which it is used, by precision: the root of the mean
# square of the difference over that of the result.
BOUNDS = {"float32": 0.001, "bfloat16": 0.1, "int8": 0.25}
# What is stored for later steps differs more where tokens are as near to one destination as to another.
_STORED_BOUND = 0.1


def find_note(model_call: ModelCall, layouts: Sequence[Layout]) -> Path | None:
    """Return the file that notes a call's comparison; None without a home folder."""
    versions = [getattr(sys.modules.get(name), "__version__", "") for name in ("openvino", "paddle", "ppdiffusers")]
    computed_by = versions, find_processor_name(), platform.machine()
    key = repr((__version__, model_call.kind, model_call.count_merged(layouts), *computed_by))
    with suppress(RuntimeError):
        return find_cache_folder() / hashlib.sha256(key.encode()).hexdigest()
    return None


def compute_unless_noted(model_call: ModelCall, note: Path | None) -> CallOutputs | None:
    """Compute a call by Paddle; None where its comparison is noted."""
    if note is not None and os.path.isfile(note):  # ``Path.is_file`` raises in a folder without permission.
        return None
    twin_call = TwinCall(model_call, model_call.contents.tensors, model_call.tensors)
    compute_in_slices(twin_call.twin)
    return twin_call.run()


def compare_outputs(outputs: CallOutputs, expected: CallOutputs, precision: str, note: Path | None) -> None:
    """Refuse a program whose outputs differ from Paddle's; else note it."""
    bound = BOUNDS[precision]
    for difference, most in (
        (measure_difference(outputs.returned, expected.returned), bound),
        (measure_difference(outputs.stored, expected.stored, pooled=True), max(bound, _STORED_BOUND)),
    ):
        if not difference <= most:  # NaN is refused, too.
            raise UncompilableError(
                f"its result in {precision} differs from Paddle's by {difference:.2g}, more than {most:g}"
                + ("" if precision == "float32" else "; give float32")
            )
    with suppress(OSError):  # Without a note the next process compares again.
        if note is not None:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()


def measure_difference(result: Any, expected: Any, *, pooled: bool = False) -> float:
    """Compare two outputs of a call.

    Returns:
        The root mean square of the difference, divided by that of the expected numbers: the largest of all tensors, or
        with ``pooled`` that of all their numbers together. 0 without tensors, NaN where one has NaN.
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
