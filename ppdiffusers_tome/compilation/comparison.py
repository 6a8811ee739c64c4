"""The comparison of a program's first result with Paddle's.

A program is made anew in every process, in seconds. The comparison takes a call of Paddle's, so it is made once, and
noted by an empty file in the user's cache folder, named by a hash of the model's contents, the kind of call, and what
computes it.
"""

import hashlib
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

from ppdiffusers_tome.compilation.contents import put_scales
from ppdiffusers_tome.compilation.mapped_weights import find_cache_folder
from ppdiffusers_tome.compilation.model_call import ModelCall
from ppdiffusers_tome.compilation.slices import compute_in_slices
from ppdiffusers_tome.compilation.structure import put_tensors, take_tensors
from ppdiffusers_tome.compilation.twin import StepCall, make_twin, run_twin
from ppdiffusers_tome.errors import UncompilableError
from ppdiffusers_tome.machine import find_processor_name
from ppdiffusers_tome.version import __version__

if TYPE_CHECKING:
    from ppdiffusers_tome.compilation.program import Program

# The largest difference of a program's result from Paddle's with which it is used, by precision: the root of the mean
# square of the difference over that of the result.
BOUNDS = {"float32": 0.001, "bfloat16": 0.1, "int8": 0.25}
# What is kept for later steps differs more where tokens are as near to one destination as to another.
_KEPT_BOUND = 0.1


def compare_program(program: "Program", model_call: ModelCall) -> Any:
    """Refuse a program whose result differs from Paddle's.

    Returns:
        The result; None where an earlier comparison is noted.
    """
    precision, note = model_call.precision, None
    with suppress(RuntimeError):  # without a home each process compares
        note = _name_note_file(__version__, model_call.kind, model_call.count_merged(program.layouts))
    if note is not None and os.path.isfile(note):  # False too where Path raises, as in a folder without permission
        return None
    expected, kept = _compute_by_paddle(model_call)
    result, bound = program.run(model_call.tensors), BOUNDS[precision]
    for found, wanted, most in ((result[0], expected, bound), (result[1], kept, max(bound, _KEPT_BOUND))):
        if not (difference := measure_difference(found, wanted, pooled=wanted is kept)) <= most:
            raise UncompilableError(
                f"its result in {precision} differs from Paddle's by {difference:.2g}, more than {most:g}"
            )
    with suppress(OSError):  # else the next process compares again
        if note is not None:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    return result


def _compute_by_paddle(model_call: ModelCall) -> tuple[Any, list[Any]]:
    """Return a call's output, and what it keeps for later steps."""
    step, twin = model_call.step, make_twin(model_call.layer, {id(x): x for x in model_call.contents.tensors})
    args, kwargs, predicted, reductions, scales = put_tensors(model_call.arguments, model_call.tensors)
    put_scales(twin, scales)
    compute_in_slices(twin)
    computed = StepCall(predicted, reductions, step.stores_values)
    return run_twin(twin, args, kwargs, step.call, computed), computed.values


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


def _name_note_file(*parts: object) -> Path:
    """Return the file that notes a comparison.

    Raises:
        RuntimeError: of a user without a home.
    """
    versions = [getattr(sys.modules.get(name), "__version__", "") for name in ("openvino", "paddle", "ppdiffusers")]
    computes = versions, find_processor_name() or platform.machine()
    return find_cache_folder() / hashlib.sha256(repr((*parts, *computes)).encode()).hexdigest()
