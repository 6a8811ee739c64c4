"""Twins: copies of models by which calls are traced or compared.

The user's own layers are never touched, so nothing has to be put back, and other threads may change them meanwhile.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.compilation.contents import COMPILED, list_ip_adapters
from ppdiffusers_tome.compilation.model_call import CallOutputs, ModelCall
from ppdiffusers_tome.compilation.structure import put_tensors
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.patching.arguments import name_arguments
from ppdiffusers_tome.patching.call_stack import CALL_STACK, CHANGE_LOCK, StackEntry
from ppdiffusers_tome.patching.override import list_overrides, walk_overrides
from ppdiffusers_tome.patching.overrides.denoiser import DenoiserOverride, find_timestep
from ppdiffusers_tome.patching.slots import list_functions
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.state.shared_values import CallIdentity, SharedValues


class TracedCache:
    """The ``CallCache`` of a call by a twin, without histories."""

    def __init__(self, predicted: Mapping[str, Any], *, stores_values: bool) -> None:
        self.stores_values = stores_values
        self.has_skipped = False
        self.chain_inputs: dict[str, Sequence[Any]] = {}
        self.chain_outputs: dict[str, Sequence[Any]] = {}
        self.stored: list[tuple[str, Any, bool]] = []  # as of ``CallOutputs``
        self._predicted = predicted

    def skips(self, path: str) -> bool:
        return path in self._predicted

    def predict(self, path: str) -> Any:
        return self._predicted[path]

    def store(self, path: str, value: Any, *, has_slope: bool = True) -> None:
        self.stored.append((path, value, has_slope))


class TwinCall:
    """A call of a model's twin, with other weights and tensors, maybe symbols.

    Attributes:
        twin: the copy of the model's layers and ToMe, without its programs.
        tensors: the tensors in place of the call's own.
        arguments: the call's arguments with these tensors.
        timestep: the timestep that the model embedded; None before.
        layouts: the layouts of the tokens of blocks that are on a grid.
    """

    def __init__(self, model_call: ModelCall, weights: Sequence[Any], tensors: Sequence[Any]) -> None:
        self.twin = _copy_model(model_call.model, dict(zip(map(id, model_call.contents.tensors), weights, strict=True)))
        self.tensors = tensors
        self.arguments = put_tensors(model_call.arguments, tensors)
        self._args, self._kwargs, predicted, self._reductions, scales = self.arguments
        self._call = model_call.step_values.call
        self._cached = TracedCache(predicted, stores_values=model_call.step_values.stores_values)
        for adapter, scale in zip(list_ip_adapters(self.twin), scales, strict=True):
            vars(adapter)["scale"] = scale
        self.timestep: Any = None
        self.layouts: tuple[Layout, ...] = ()

    def run(self) -> CallOutputs:
        """Compute the call once, or trace it in static mode."""
        overrides = [each for each in list_overrides(self.twin) if each.method_name == "forward"]
        denoiser = next((each for each in overrides if isinstance(each, DenoiserOverride)), None)
        run: Any = MethodType(type(self.twin).forward, self.twin)
        for override in reversed(overrides):
            if override is not denoiser:  # That one would begin a call of the model's pipeline.
                run = partial(override, run)
        outer = CALL_STACK.entries, CALL_STACK.pipeline_call
        shared = SharedValues(CallIdentity(), dict(self._reductions))
        call: DenoiserCall | None = None
        try:
            CALL_STACK.entries, CALL_STACK.pipeline_call = (), None
            if self._call is not None and denoiser is not None:
                call = DenoiserCall(
                    self._call.state, self.twin, progress=self._call.progress, shared=shared, cached=self._cached,
                    given_timestep=find_timestep(name_arguments(denoiser.parameters, self._args, self._kwargs)),
                )  # fmt: skip
                if denoiser.reads_timestep:
                    call.read_timestep()
                CALL_STACK.entries = (StackEntry(call),)
            returned = run(*self._args, **self._kwargs)
        finally:
            CALL_STACK.entries, CALL_STACK.pipeline_call = outer
            self.timestep = None if call is None else call.timestep
        self.layouts = () if call is None else tuple(call.layouts.values())
        made = {key: value for key, value in shared.reductions.items() if key not in self._reductions}
        return CallOutputs(returned, self._cached.stored, made, self._cached.has_skipped)


def _copy_model(model: Layer, tensors: Mapping[int, Any]) -> Layer:
    """Copy a model of known code, with other tensors by ``id`` of its own."""
    with CHANGE_LOCK:
        # The twin shares the model's settings, and what was warned of.
        states = {id(each.state): each.state for each in walk_overrides(model)}
        compiled = (vars(layer).get(COMPILED) for layer in model.sublayers(include_self=True))
        # Functions and hooks that run around a program are no part of it.
        around = [*list_functions(model), model._forward_pre_hooks, model._forward_post_hooks]
        memo = {**tensors, **states, **{id(each): None for each in (*compiled, *around) if each is not None}}
        twin = copy.deepcopy(model, memo)
    for layer in twin.sublayers(include_self=True):
        layer._built = True  # As Paddle marks it at its first call.
    return twin
