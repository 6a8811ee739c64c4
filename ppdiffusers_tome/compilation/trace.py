"""The program of a call: traced by Paddle, and written with OpenVINO's operators."""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
import paddle
from openvino import opset15
from paddle.base import framework
from paddle.nn import Layer

from ppdiffusers_tome.compilation.operators import OPERATORS, Operator, find_dtype
from ppdiffusers_tome.compilation.structure import Structure, put_tensors, take_tensors
from ppdiffusers_tome.errors import UncompilableError
from ppdiffusers_tome.merging.arrays import share_memory

# Paddle writes into one program at a time, whatever the thread.
_LOCK = threading.Lock()
# Of operators, what does not change their results.
_REMARKS = ("op_callstack", "struct_name", "place", "stop_gradient", "persistable")


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced call.

    Attributes:
        model: of OpenVINO, with an input for each tensor of the call; weights are constants on Paddle's memory.
        output: the structure of what the call returns.
        digest: a hash of the operators, not of the weights.
    """

    model: Any
    output: Structure
    digest: str


def trace_call(layer: Layer, arguments: Structure, tensors: Sequence[paddle.Tensor]) -> Trace:
    """Trace a call of a layer for tensors of these shapes and types.

    Args:
        layer: in evaluation mode.
        arguments, tensors: of its ``args`` and ``kwargs``, as ``take_tensors`` parts them.

    Raises:
        UncompilableError: an operator of the call is none of ``OPERATORS``.
    """
    outputs: list[Any] = []
    inputs = {f"input{number}": x for number, x in enumerate(tensors)}
    with _LOCK, _static_mode() as program, _replace_weights(layer) as weights:
        values = [paddle.static.data(name, x.shape, x.dtype) for name, x in inputs.items()]
        args, kwargs = put_tensors(arguments, values)
        # With ToMe's overrides, which are around the function of ``compile_cpu``.
        output = take_tensors(layer.forward(*args, **kwargs), outputs)
    parameters = [opset15.parameter(x.shape, find_dtype(x.dtype), name) for name, x in inputs.items()]
    known = dict(zip(inputs, parameters, strict=True))
    for name, weight in weights.items():
        known[name] = opset15.constant(share_memory(weight)[0], shared_memory=True)
    nodes, digest = _write_operators(program, known, outputs)
    digest.update(repr(output).encode())
    return Trace(openvino.Model([*map(opset15.result, nodes)], parameters), output, digest.hexdigest())


@contextmanager
def _static_mode() -> Iterator[Any]:
    """Switch this thread to Paddle's static mode; yield the program that it writes."""
    tracer, program = framework._dygraph_tracer(), paddle.static.Program()
    with framework._dygraph_guard(None), paddle.static.program_guard(program, paddle.static.Program()):
        framework._dygraph_tracer_ = tracer  # of threads that begin meanwhile
        yield program


@contextmanager
def _replace_weights(layer: Layer) -> Iterator[dict[str, paddle.Tensor]]:
    """Yield weights by name, replaced by inputs; restore all attributes.

    Raises:
        UncompilableError: an attribute was set meanwhile, which a program would not do.
    """
    layers = layer.sublayers(include_self=True)
    attributes = [dict(vars(each)) for each in layers]  # code of a model may store what it computes
    held = [tensors for found in attributes for tensors in (found["_parameters"], found["_buffers"])]
    before = [dict(tensors) for tensors in held]
    weights: dict[str, paddle.Tensor] = {}
    inputs: dict[int, Any] = {}
    try:
        for tensors in held:
            for name, x in tensors.items():
                if x is not None and id(x) not in inputs:
                    label = f"weight{len(weights)}"
                    weights[label], inputs[id(x)] = x, paddle.static.data(label, x.shape, x.dtype)
                if x is not None:
                    tensors[name] = inputs[id(x)]
        yield weights
        for each, found in zip(layers, attributes, strict=True):
            for name, value in vars(each).items():
                kept = found.get(name, getattr(type(each), name, None))
                if name != "_built" and value is not kept:  # as a count of steps, by which a cache goes
                    raise UncompilableError(f"{type(each).__name__} sets its {name} in every call")
    finally:
        for tensors, found in zip(held, before, strict=True):
            tensors.update(found)
        for each, found in zip(layers, attributes, strict=True):
            vars(each).clear()
            vars(each).update(found)


def _write_operators(program: Any, known: Mapping[str, Any], outputs: Sequence[Any]) -> tuple[list[Any], Any]:
    """Write a program with OpenVINO's operators.

    Returns:
        The nodes of ``outputs``, given those of the inputs by name, and a hash of the operators.

    Raises:
        UncompilableError: an output depends on an operator that is not known.
    """
    nodes: dict[str, Any] = {}
    number_by_value: dict[str, int] = {}
    digest = hashlib.sha256()
    for operator in program.global_block().ops:
        sources, results = operator.operands_source(), operator.results()
        ids = [value.id if value.initialized() else "" for value in sources]
        attributes = {name: value for name, value in operator.attrs().items() if name not in _REMARKS}
        shapes = [None if value.is_combine() else value.shape for value in results]
        digest.update(repr((operator.name(), [number_by_value.get(each) for each in ids], attributes, shapes)).encode())
        for value in results:
            number_by_value[value.id] = len(number_by_value)
        try:
            written = _write_operator(operator, [nodes.get(each) for each in ids], known)
        except UncompilableError as error:  # which matters where its result is used
            if operator.name().endswith("_"):  # it writes into its input, maybe a buffer
                raise
            written = [error] * len(results)
        # Results without a node are never read.
        for value, node in zip(results, written if isinstance(written, list) else [written], strict=False):
            if isinstance(node, np.ndarray):
                node = opset15.constant(node)
            nodes[value.id] = node.output(0) if isinstance(node, openvino.Node) else node
    for value in outputs:
        digest.update(str(number_by_value[value.id]).encode())
        if isinstance(nodes[value.id], UncompilableError):
            raise nodes[value.id]
    return [nodes[value.id] for value in outputs], digest


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
