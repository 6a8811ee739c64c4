"""The operators that merging runs on a GPU, from a traced program.

Nothing is run, so no GPU is needed.

Paddle's CPU has no float16 kernels for most of them, so the program is only built: shapes and types are inferred. It is
built with the operators of a picture being made, without gradients, so that sums are made in place.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import paddle

from benchmarks.block import BlockCase, Stages, run_free, run_ours, run_port, run_todo
from ppdiffusers_tome.merging import matching

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}
# Paddle 3 writes the program's inputs, the shapes asked for and lists of tensors as operators too.
_NOTHING_RUNS = ("data", "full_int_array", "combine")
# What Paddle's calls in place end with, behind what makes their arguments fit.
_IN_PLACE = ("scatter", "elementwise_mul", "multiply", "put_along_axis")
_ATTRIBUTES = ("overwrite", "Reduce", "axis", "axes", "trans_x", "trans_y", "force_cpu")


@dataclass(frozen=True)
class Data:
    """A tensor's shape and type; ``strided`` if it is a view with gaps."""

    shape: tuple[int, ...]
    dtype: str
    strided: bool = False

    @property
    def size(self) -> int:
        """Entries."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.size * _BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Operator:
    """One operator of a program.

    Attributes:
        name: as Paddle's program writes it.
        inputs: by slot, such as ``X``; by number where the program names none (Paddle 3).
        outputs: without those that only remember a shape.
        attributes: those that cost rules ask for.
        stage: that it belongs to.
        in_place: its output takes its first input's memory.
    """

    name: str
    inputs: dict[str, Data]
    outputs: tuple[Data, ...]
    attributes: dict[str, Any]
    stage: str = ""
    in_place: bool = False


# What is counted, by the names of the tables.
TRACED: dict[str, Stages] = {
    "ours": run_ours,
    "ours, tile=16": partial(run_ours, tile=16),
    "ours, method=todo": run_todo,
    "port": run_port,
    "free": run_free,
}


def trace(stages: Stages, case: BlockCase, dtype: str = "float16") -> list[Operator]:
    """The operators of one block, in the order in which they run.

    Args:
        stages: one of ``TRACED``.
        case: the tokens.
        dtype: of the tokens. Paddle 3 traces only what its CPU could run, so it knows no matching in half precision.
    """
    if stages is run_port:
        import ppdiffusers.patches.tomesd_patch_utils  # noqa: F401  (before static mode: its import computes)
    ends: dict[str, int] = {}
    with _static_mode(), paddle.utils.unique_name.guard(), paddle.static.program_guard(paddle.static.Program()):
        x = paddle.static.data("x", [case.batch, case.grid.num_tokens, case.channels], dtype)
        timestep = paddle.static.data("timestep", [1], "int64")
        block = paddle.static.default_main_program().global_block()
        with trace_with_inplace(), _watch_in_place_calls(block) as calls:
            for stage in stages(case, x, timestep):
                ends[stage] = len(block.ops)
        operators = list(_operators(block))
    in_place = {next(n for n in range(call, len(operators)) if operators[n].name in _IN_PLACE) for call in calls}
    starts = [0, *ends.values()][:-1]
    stage_of = [stage for start, (stage, end) in zip(starts, ends.items(), strict=True) for _ in range(start, end)]
    return [
        replace(operator, stage=stage, in_place=number in in_place)
        for number, (operator, stage) in enumerate(zip(operators, stage_of, strict=True))
        if operator.name not in _NOTHING_RUNS
    ]


@contextlib.contextmanager
def _static_mode() -> Iterator[None]:
    was_dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        yield
    finally:
        if was_dynamic:
            paddle.disable_static()


@contextlib.contextmanager
def trace_with_inplace() -> Iterator[None]:
    """Trace programs that write in place, for counting operators."""
    with mock.patch.object(matching, "works_in_place", return_value=True):
        yield


@contextlib.contextmanager
def _watch_in_place_calls(block: Any) -> Iterator[list[int]]:
    """Note the number of operators at each call that works in place dynamically.

    Paddle records such a call as one that makes a copy, and warns of just that.
    """
    calls: list[int] = []

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if "does not perform inplace operation" in str(message):
            calls.append(len(block.ops))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield calls


def _operators(block: Any) -> Iterator[Operator]:
    strided: set[str] = set()
    for op in block.ops:
        if not hasattr(op, "input_names"):  # Paddle 3
            used, made = (
                [_data(value) for value in values if value.is_dense_tensor_type()]
                for values in (op.operands_source(), op.results())
            )
            yield Operator(op.name().split(".")[-1], {str(n): data for n, data in enumerate(used)}, tuple(made), {})
            continue
        inputs = {
            slot if len(op.input(slot)) == 1 else f"{slot}{number}": _data(block.var(name), name in strided)
            for slot in op.input_names
            for number, name in enumerate(op.input(slot))
        }
        attributes = {name: op.attr(name) for name in _ATTRIBUTES if op.has_attr(name)}
        names = [name for slot in op.output_names if slot != "XShape" for name in op.output(slot)]
        if _leaves_gaps(op.type, inputs, attributes):
            strided.update(names)
        yield Operator(op.type, inputs, tuple(_data(block.var(name), name in strided) for name in names), attributes)


def _leaves_gaps(name: str, inputs: dict[str, Data], attributes: dict[str, Any]) -> bool:
    """True for a view whose entries do not lie side by side in memory."""
    if name == "transpose2":
        return True
    if name == "slice":
        source = inputs["Input"]
        return source.strided or math.prod(source.shape[: min(attributes["axes"])]) > 1
    return name in ("unsqueeze2", "squeeze2") and inputs["X"].strided


def _data(variable: Any, strided: bool = False) -> Data:
    return Data(tuple(variable.shape), str(variable.dtype).split(".")[-1].lower(), strided)
