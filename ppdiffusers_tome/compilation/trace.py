"""The program of a call: traced by Paddle, and written with OpenVINO's operators."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import openvino
import paddle
from openvino import opset15
from paddle.base import framework

from ppdiffusers_tome.compilation.arrays import share_memory
from ppdiffusers_tome.compilation.contents import Contents
from ppdiffusers_tome.compilation.model_call import ModelCall
from ppdiffusers_tome.compilation.operators import OPERATORS, Operator, find_dtype
from ppdiffusers_tome.compilation.snapshot import Snapshot
from ppdiffusers_tome.compilation.structure import Structure, take_tensors
from ppdiffusers_tome.compilation.twin import TwinCall
from ppdiffusers_tome.errors import UncompilableError
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.patching.call_stack import renew_after_fork
from ppdiffusers_tome.patching.override import walk_overrides
from ppdiffusers_tome.patching.overrides.denoiser import TimestepOverride
from ppdiffusers_tome.patching.slots import replace_inner_forward

# Paddle writes into one program at a time, whatever the thread.
_LOCK = threading.Lock()
renew_after_fork(_LOCK)
# Operators that hand a timestep on as it is.
_KEEPING = ("cast", "reshape", "expand", "unsqueeze", "squeeze", "flatten", "assign")


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced call."""

    openvino_model: Any  # Its weights are constants on Paddle's memory.
    inputs: list[int]  # The numbers of the call's tensors that are inputs of it, as some are never read.
    outputs: Structure  # The structure of its ``CallOutputs``.
    layouts: tuple[Layout, ...]  # The layouts of the tokens of blocks that are on a grid.
    has_skipped: bool  # Whether a layer was skipped.


def trace_call(model_call: ModelCall) -> Trace:
    """Trace a call of a model for tensors of its shapes.

    Raises:
        UncompilableError: an operator of the call is none of ``OPERATORS``, or the call changes something.
    """
    results: list[Any] = []
    with _LOCK, _static_mode() as program:
        twin_call = _make_symbolic_call(model_call)
        before = Contents(twin_call.twin).snapshot
        outputs = twin_call.run()
        structure = take_tensors(tuple(outputs), results)
        _require_unchanged(before, model_call, twin_call)
    weights = [opset15.constant(x, shared_memory=True) for x in share_memory(*model_call.contents.tensors)]
    parameters = [opset15.parameter(x.shape, find_dtype(x.dtype)) for x in twin_call.tensors]
    inputs = {f"weight{n}": each for n, each in enumerate(weights)}
    inputs.update({f"input{n}": each for n, each in enumerate(parameters)})
    nodes = [opset15.result(node) for node in _write_operators(program, inputs, results)]
    used = [n for n, each in enumerate(parameters) if each.output(0).get_target_inputs()]
    openvino_model = openvino.Model(nodes, [parameters[n] for n in used])
    return Trace(openvino_model, used, structure, twin_call.layouts, outputs.has_skipped)


@contextmanager
def _static_mode() -> Iterator[Any]:
    """Yield the program that Paddle writes in static mode on this thread."""
    tracer, program = framework._dygraph_tracer(), paddle.static.Program()
    with framework._dygraph_guard(None), paddle.static.program_guard(program, paddle.static.Program()):
        # The guard sets the mode of threads that begin meanwhile, too, and those have to compute.
        framework._dygraph_tracer_ = tracer
        yield program


def _make_symbolic_call(model_call: ModelCall) -> TwinCall:
    """Make a call with symbols as weights and as the call's tensors."""
    weights = [paddle.static.data(f"weight{n}", x.shape, x.dtype) for n, x in enumerate(model_call.contents.tensors)]
    inputs = [paddle.static.data(f"input{n}", x.shape, x.dtype) for n, x in enumerate(model_call.tensors)]
    return TwinCall(model_call, weights, inputs)


def _require_unchanged(before: Snapshot, model_call: ModelCall, twin_call: TwinCall) -> None:
    """Refuse a call that sets an attribute or fills an argument."""
    if change := before.find_change():
        raise UncompilableError(f"{change} in every call")
    found: list[Any] = []
    is_same = take_tensors(twin_call.arguments, found) == model_call.arguments
    if not is_same or any(a is not b for a, b in zip(found, twin_call.tensors, strict=True)):
        raise UncompilableError("it fills one of its arguments")


def _write_operators(program: Any, inputs: Mapping[str, Any], outputs: Sequence[Any]) -> list[Any]:
    """Write a program with OpenVINO's operators; return the nodes of its outputs.

    The nodes of its inputs are given by name. An operator that cannot be written matters where its result is used.
    """
    nodes: dict[str, Any] = {}
    for operator in program.global_block().ops:
        ids = [value.id if value.initialized() else "" for value in operator.operands_source()]
        results = operator.results()
        try:
            written = _write_operator(operator, [nodes.get(each) for each in ids], inputs)
        except UncompilableError as error:
            if operator.name().endswith("_"):  # It writes into its input, which may be a buffer.
                raise
            written = [error] * len(results)
        # Results without a node are never read.
        for value, node in zip(results, written if isinstance(written, list) else [written], strict=False):
            if isinstance(node, np.ndarray):
                node = opset15.constant(node)
            nodes[value.id] = node.output(0) if isinstance(node, openvino.Node) else node
    for value in outputs:
        if isinstance(nodes[value.id], UncompilableError):
            raise nodes[value.id]
    return [nodes[value.id] for value in outputs]


def _write_operator(operator: Any, operands: Sequence[Any], inputs: Mapping[str, Any]) -> Any:
    """Write an operator; return its node, array or outputs."""
    for each in operands:
        for node in each if isinstance(each, list) else [each]:
            if isinstance(node, UncompilableError):
                raise node
    name = operator.name().removeprefix("pd_op.").rstrip("_")
    if name == "data":
        return inputs[operator.attrs()["name"]]
    if name == "builtin.combine":
        return [operands]
    if name == "builtin.split":
        return operands[0]
    if name not in OPERATORS:
        raise UncompilableError(f"{operator.name()} is none of the operators that can be compiled")
    return OPERATORS[name](Operator(operator, operands))


def embeds_input(model_call: ModelCall) -> bool:
    """Return whether a model embeds the timestep that it gets."""
    with _LOCK, _static_mode(), suppress(Exception):  # Paddle computes what cannot be copied, or embeds no timestep.
        twin_call = _make_symbolic_call(model_call)
        for override in walk_overrides(twin_call.twin):
            if isinstance(override, TimestepOverride):  # The layers after the embedding need not run.
                replace_inner_forward(override.layer, None, MethodType(_stop, override.layer))
        with suppress(Exception):  # Whatever else fails will fail again where the call is traced.
            twin_call.run()
        operator = twin_call.timestep.get_defining_op()
        while operator.name().removeprefix("pd_op.") in _KEEPING:
            operator = operator.operands_source()[0].get_defining_op()
        return operator.name() == "pd_op.data"
    return False


def _stop(*_: Any, **__: Any) -> None:
    raise UncompilableError("the timestep is embedded")
