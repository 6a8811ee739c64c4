"""The operators that merging in one block runs on a GPU, from a traced program. Nothing is run, so no GPU is needed.

Paddle's CPU has no float16 kernels for most of them, so the program is only built: shapes and types are inferred. Two
things are arranged, so that it is the path of a picture being made on a GPU: that is the device, and sums may be made
in place, as they are when no gradient is recorded.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import paddle

from ppdiffusers_tome.merging import matching
from ppdiffusers_tome.merging.downsampling import Downsampling, kept_tokens
from ppdiffusers_tome.merging.matchers import bipartite, matcher
from ppdiffusers_tome.merging.partition import random_partition
from ppdiffusers_tome.tools.bench.overhead import Problem

# A contender works on the tokens and the timestep and yields the name of every stage as soon as it has ended.
Contender = Callable[[Problem, Any, Any], Iterator[str]]

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}
# Paddle 3 writes the program's inputs, the shapes asked for and lists of tensors as operators too.
_NOTHING_RUNS = ("data", "full_int_array", "combine")
_ATTRIBUTES = ("overwrite", "Reduce", "axis", "axes", "trans_x", "trans_y", "force_cpu")


@dataclass(frozen=True)
class Data:
    """One tensor's shape and type; ``strided`` when it is a view with gaps, which most kernels make a copy of first."""

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
        stage: of the contender.
        in_place: its output takes its first input's memory.
    """

    name: str
    inputs: dict[str, Data]
    outputs: tuple[Data, ...]
    attributes: dict[str, Any]
    stage: str = ""
    in_place: bool = False


def ours(problem: Problem, x: Any, timestep: Any, *, tile: int | None = None) -> Iterator[str]:
    partition = random_partition(problem.grid, 2, 2, seed=0, timestep=timestep)
    num_merged = problem.grid.num_merged(problem.ratio)
    match = matcher(partition, problem.grid, num_merged, tile=tile)
    yield "partition"
    found: Any = match(x)
    yield "match"
    merged = found.merge(x)
    yield "merge"
    found.unmerge(merged)
    yield "unmerge"


def todo(problem: Problem, x: Any, timestep: Any) -> Iterator[str]:
    """Attention with fewer keys: what its layers for keys and values get is chosen, and nothing is put back."""
    partition = random_partition(problem.grid, 2, 2, seed=0, timestep=timestep)
    num_merged = problem.grid.num_merged(problem.ratio)
    yield "partition"
    downsampling = Downsampling(kept_tokens(partition, num_merged), x.shape[0], x.shape[1])
    yield "match"
    downsampling.downsample(x)
    downsampling.downsample(x)
    yield "merge"


def port(problem: Problem, x: Any, timestep: Any) -> Iterator[str]:
    """ppdiffusers' own; its partition belongs to its matching, so it is made anew in every block."""
    from ppdiffusers.patches.tomesd_patch_utils import bipartite_soft_matching_random2d

    num_merged = problem.grid.num_merged(problem.ratio)
    merge, unmerge = bipartite_soft_matching_random2d(x, problem.width, problem.height, 2, 2, num_merged)
    yield "match"
    merged = merge(x)
    yield "merge"
    unmerge(merged)
    yield "unmerge"


def free(problem: Problem, x: Any, timestep: Any) -> Iterator[str]:
    """No merging at all: the last tokens are cut off and put back."""
    num_left = problem.grid.num_tokens - problem.grid.num_merged(problem.ratio)
    left = x[:, :num_left]
    yield "merge"
    paddle.concat([left, x[:, num_left:]], axis=1)
    yield "unmerge"


CONTENDERS: dict[str, Contender] = {
    "ours": ours,
    "ours, tile=16": partial(ours, tile=16),
    "ours, method=todo": todo,
    "port": port,
    "free": free,
}


def trace(contender: Contender, problem: Problem, dtype: str = "float16") -> list[Operator]:
    """The operators of one block, in the order in which they run.

    Args:
        contender: one of ``CONTENDERS``.
        problem: the tokens, ``[batch, height * width, channels]``.
        dtype: of the tokens. Paddle 3 traces only what its CPU could run, so it knows no matching in half precision.
    """
    if contender is port:
        import ppdiffusers.patches.tomesd_patch_utils  # noqa: F401  (before static mode: its import computes)
    in_place: set[int] = set()
    ends: dict[str, int] = {}
    with _static_mode(), paddle.utils.unique_name.guard(), paddle.static.program_guard(paddle.static.Program()):
        x = paddle.static.data("x", [problem.batch, problem.grid.num_tokens, problem.channels], dtype)
        timestep = paddle.static.data("timestep", [1], "int64")
        block = paddle.static.default_main_program().global_block()
        with _as_on_a_gpu(type(x), block, in_place):
            for stage in contender(problem, x, timestep):
                ends[stage] = len(block.ops)
        operators = list(_operators(block))
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if was_dynamic:
            paddle.disable_static()


@contextlib.contextmanager
def _as_on_a_gpu(tensor: type, block: Any, in_place: set[int]) -> Iterator[None]:
    """Build the program that a GPU runs in eager mode; ``in_place`` gathers the numbers of what works in place."""

    def noting(name: str, owner: Any) -> Any:
        function = getattr(owner, name.rstrip("_"))

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            in_place.add(len(block.ops) - 1)
            return result

        return mock.patch.object(owner, name, call)

    with (
        mock.patch.object(paddle, "get_device", return_value="gpu:0"),
        mock.patch.object(matching, "may_write", return_value=True),
        mock.patch.object(bipartite, "may_write", return_value=True),
        noting("scatter_", paddle),
        noting("multiply_", tensor),
        noting("put_along_axis_", tensor),
    ):
        yield


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
