"""Check that every operator of the hot path has float16 and bfloat16 GPU kernels, from Paddle's own registry.

    python -m venv gpu && gpu/bin/pip install paddlepaddle-gpu==2.6.2 "numpy<2" "setuptools<70"
    gpu/bin/python docs/gpu_kernels.py

Needs no GPU: the registry is read, nothing is run on one. The operators are not a list kept by hand: matching,
merging and unmerging are traced into a program and its operators are looked up. Prints a Markdown table and fails
if a kernel is missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ppdiffusers_tome.grid import Grid
from ppdiffusers_tome.methods.tome import match
from ppdiffusers_tome.partition import random_partition


def traced_operators() -> dict[str, set[str]]:
    """Operators of one block's match, merge and unmerge, with the types of their tensor inputs."""
    paddle.enable_static()
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        x = paddle.static.data("x", [2, 64, 32], "float16")
        timestep = paddle.static.data("timestep", [1], "int64")
        partition = random_partition(Grid(8, 8), 2, 2, seed=0, timestep=timestep)
        matching = match(x, partition, 32)
        matching.unmerge(matching.merge(x))
    operators: dict[str, set[str]] = {}
    for op in program.global_block().ops:
        names = [name for slot in op.input_names for name in op.input(slot)]
        types = {str(program.global_block().var(name).dtype).split(".")[-1].lower() for name in names}
        operators.setdefault(op.type, set()).update(types)
    return operators


def gpu_types(kernels: dict[str, list[str]], operator: str) -> set[str]:
    """The types for which the operator has a kernel on the GPU, as the registry writes them."""
    # The registry of 2.6.2 lists `cast` by its gradient alone, which is the same kernel.
    registered = kernels.get(operator) or kernels.get(f"{operator}_grad", [])
    keys = [key for key in registered if "place[Place(gpu" in key]
    return {key.split("data_type[")[1].split("]")[0].split("::")[-1] for key in keys}


def main() -> None:
    kernels = paddle.base.core._get_all_register_op_kernels("all")
    version = paddle.__version__
    print(f"| operator | its inputs | float16 | bfloat16 | other GPU kernels in Paddle {version} |")
    print("|---|---|---|---|---|")
    missing = []
    for operator, used in sorted(traced_operators().items()):
        found = gpu_types(kernels, operator)
        half = {"float16", "bfloat16"} <= found
        if not half and ("float16" in used or not found):
            missing.append(operator)
        marks = ["yes" if name in found else "-" for name in ("float16", "bfloat16")]
        others = ", ".join(sorted(found - {"float16", "bfloat16"}))
        print(f"| {operator} | {', '.join(sorted(used)) or '-'} | {' | '.join(marks)} | {others} |")
    if missing:
        sys.exit(f"no GPU kernel, or none in half precision where it is needed, for: {', '.join(missing)}")
    print("\nEvery operator that sees half-precision tensors has float16 and bfloat16 GPU kernels.")


if __name__ == "__main__":
    main()
