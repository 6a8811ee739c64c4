"""Check that every operator has GPU kernels in half precision.

Paddle's own registry lists them.

    python -m venv gpu && gpu/bin/pip install paddlepaddle-gpu==2.6.2 "numpy<2" "setuptools<70"
    PYTHONPATH=tests gpu/bin/python -m benchmarks.gpu_kernels

Needs no GPU: the registry is read, nothing is run on one. The operators are not a list kept by hand: matching,
merging and unmerging are traced into a program and its operators are looked up. Prints a Markdown table and fails
if a kernel is missing.
"""

from __future__ import annotations

import sys
from typing import Any

import paddle

from benchmarks.block import BlockCase
from benchmarks.gpu_trace import TRACED, trace
from benchmarks.pages import table


def trace_operators() -> dict[str, set[str]]:
    """Return a block's operators, with the types of their inputs."""
    operators: dict[str, set[str]] = {}
    for name, stages in TRACED.items():
        # The port needs ppdiffusers, which this environment has not.
        for op in trace(stages, BlockCase()) if name.startswith("ours") else ():
            operators.setdefault(op.name, set()).update(data.dtype for data in op.inputs.values())
    return operators


def gpu_types(kernels: dict[str, list[str]], operator: str) -> set[str]:
    """Return the types for which an operator has a GPU kernel."""
    # The registry of 2.6.2 lists `cast` by its gradient alone, which is the same kernel.
    registered = kernels.get(operator) or kernels.get(f"{operator}_grad", [])
    keys = [key for key in registered if "place[Place(gpu" in key]
    return {key.split("data_type[")[1].split("]")[0].split("::")[-1] for key in keys}


def main() -> None:
    core: Any = paddle.base.core
    kernels = core._get_all_register_op_kernels("all")
    version = paddle.__version__
    rows, missing = [], []
    for operator, used in sorted(trace_operators().items()):
        found = gpu_types(kernels, operator)
        half = {"float16", "bfloat16"} <= found
        if not half and ("float16" in used or not found):
            missing.append(operator)
        marks = ["yes" if name in found else "-" for name in ("float16", "bfloat16")]
        others = ", ".join(sorted(found - {"float16", "bfloat16"}))
        rows.append([operator, ", ".join(sorted(used)) or "-", *marks, others])
    headings = ["operator", "its inputs", "float16", "bfloat16", f"other GPU kernels in Paddle {version}"]
    print(table(headings, rows, left=5))
    if missing:
        sys.exit(f"no GPU kernel, or none in half precision where it is needed, for: {', '.join(missing)}")
    print("Every operator that sees half-precision tensors has float16 and bfloat16 GPU kernels.")


if __name__ == "__main__":
    main()
