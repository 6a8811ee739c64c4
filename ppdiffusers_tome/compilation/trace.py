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
from paddle.nn import Layer

from ppdiffusers_tome.compilation.contents import Contents, put_scales
from ppdiffusers_tome.compilation.model_call import ModelCall
from ppdiffusers_tome.compilation.operators import OPERATORS, Operator, find_dtype
from ppdiffusers_tome.compilation.snapshot import Snapshot
from ppdiffusers_tome.compilation.structure import Structure, put_tensors, take_tensors
from ppdiffusers_tome.compilation.twin import StepCall, make_twin, run_twin
from ppdiffusers_tome.errors import UncompilableError
from ppdiffusers_tome.merging.arrays import share_memory
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.patching.call_stack import renew_after_fork
from ppdiffusers_tome.patching.override import walk_overrides
from ppdiffusers_tome.patching.overrides.denoiser import TimestepOverride
from ppdiffusers_tome.patching.slots import replace_inner_forward
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall

# Paddle writes into one program at a time, whatever the thread.
_LOCK = threading.Lock()
renew_after_fork(_LOCK)
# Operators that hand on a timestep as it is.
_KEEPING = ("cast", "reshape", "expand", "unsqueeze", "squeeze", "flatten", "assign")


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced call."""

    model: Any  # of OpenVINO; weights are constants on Paddle's memory
    inputs: list[int]  # which of the call's tensors are inputs of it, as some are never read
    output: Structure  # of what the call returns, the values that it keeps and the reductions that it makes
    stored: list[tuple[str, bool]]  # these and the next two as of ``StepCall``
    layouts: tuple[Layout, ...]
    has_skipped: bool


def trace_call(model_call: ModelCall) -> Trace:
    """Trace a call of a model for tensors of its shapes.

    Raises:
        UncompilableError: an operator of the call is none of ``OPERATORS``, or the call changes something.
    """
    layer, contents = model_call.layer, model_call.contents
    outputs: list[Any] = []
    with _LOCK, _static_mode() as program:
        twin, inputs = _make_symbolic_twin(layer, contents, model_call.tensors)
        args, kwargs, predicted, reductions, scales = given = put_tensors(model_call.arguments, inputs)
        put_scales(twin, scales)
        step, before = StepCall(predicted, reductions, model_call.step.stores_values), Contents(twin).snapshot
        returned = run_twin(twin, args, kwargs, model_call.step.call, step)
        output = take_tensors((returned, step.values, step.made), outputs)
        _require_unchanged(before, model_call.arguments, inputs, given)
    arrays = enumerate(share_memory(*contents.tensors))
    known = {f"weight{n}": opset15.constant(x, shared_memory=True) for n, x in arrays}
    parameters = [opset15.parameter(x.shape, find_dtype(x.dtype), f"input{n}") for n, x in enumerate(inputs)]
    known.update({f"input{n}": each for n, each in enumerate(parameters)})
    results = [opset15.result(node) for node in _write_operators(program, known, outputs)]
    used = [n for n, each in enumerate(parameters) if each.output(0).get_target_inputs()]
    model = openvino.Model(results, [parameters[n] for n in used])
    return Trace(model, used, output, step.stored, step.layouts, step.has_skipped)


def embeds_input(model_call: ModelCall, call: DenoiserCall) -> bool:
    """Return whether a model embeds the timestep that it gets."""
    with _LOCK, _static_mode():
        twin, inputs = _make_symbolic_twin(model_call.layer, model_call.contents, model_call.tensors)
        step, (args, kwargs, *_) = StepCall(), put_tensors(model_call.arguments, inputs)
        for override in walk_overrides(twin):
            if isinstance(override, TimestepOverride):  # what comes after it is not needed
                replace_inner_forward(override.layer, None, MethodType(_stop, override.layer))
        with suppress(Exception):  # whatever else fails will again, where the call is traced
            run_twin(twin, args, kwargs, call, step)
        return _is_input(step.timestep)


def _stop(*_: Any, **__: Any) -> None:
    raise UncompilableError("the timestep is embedded")


def _make_symbolic_twin(layer: Layer, contents: Contents, tensors: Sequence[paddle.Tensor]) -> tuple[Layer, list[Any]]:
    """Make a twin with symbols as weights, and symbols for a call's tensors."""
    weights = [paddle.static.data(f"weight{n}", x.shape, x.dtype) for n, x in enumerate(contents.tensors)]
    inputs = [paddle.static.data(f"input{n}", x.shape, x.dtype) for n, x in enumerate(tensors)]
    return make_twin(layer, {id(x): symbol for x, symbol in zip(contents.tensors, weights, strict=True)}), inputs


@contextmanager
def _static_mode() -> Iterator[Any]:
    """Switch this thread to Paddle's static mode; yield the program that it writes."""
    tracer, program = framework._dygraph_tracer(), paddle.static.Program()
    with framework._dygraph_guard(None), paddle.static.program_guard(program, paddle.static.Program()):
        framework._dygraph_tracer_ = tracer  # of threads that begin meanwhile
        yield program


def _require_unchanged(before: Snapshot, arguments: Structure, inputs: Sequence[Any], structure: Any) -> None:
    """Refuse a call that sets an attribute or fills an argument."""
    if change := before.find_change():
        raise UncompilableError(f"{change} in every call")
    found: list[Any] = []
    if take_tensors(structure, found) != arguments or any(a is not b for a, b in zip(found, inputs, strict=True)):
        raise UncompilableError("it fills one of its arguments")


def _is_input(value: Any) -> bool:
    """Return whether a value is an input of the program, as it is given."""
    if value is None:
        return False
    operator = value.get_defining_op()
    while operator.name().removeprefix("pd_op.") in _KEEPING:
        operator = operator.operands_source()[0].get_defining_op()
    return operator.name() == "pd_op.data"


def _write_operators(program: Any, known: Mapping[str, Any], outputs: Sequence[Any]) -> list[Any]:
    """Write a program with OpenVINO's operators; return the nodes of its outputs.

    Those of its inputs are given by name. An operator that is not known matters where its result is used.
    """
    nodes: dict[str, Any] = {}
    for operator in program.global_block().ops:
        ids = [value.id if value.initialized() else "" for value in operator.operands_source()]
        results = operator.results()
        try:
            written = _write_operator(operator, [nodes.get(each) for each in ids], known)
        except UncompilableError as error:
            if operator.name().endswith("_"):  # it writes into its input, maybe a buffer
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


def _write_operator(operator: Any, inputs: Sequence[Any], known: Mapping[str, Any]) -> Any:
    """Write an operator; return its node, array or outputs."""
    for each in inputs:
        for node in each if isinstance(each, list) else [each]:
            if isinstance(node, UncompilableError):
                raise node
    name = operator.name().removeprefix("pd_op.").rstrip("_")
    if name == "data":
        return known[operator.attrs()["name"]]
    if name == "builtin.combine":
        return [inputs]
    if name == "builtin.split":
        return inputs[0]
    if name not in OPERATORS:
        raise UncompilableError(f"{operator.name()} is none of the operators that can be compiled")
    return OPERATORS[name](Operator(operator, inputs))
