"""A twin of a model, with which a call is traced or compared.

The user's own layers are never touched, so nothing has to be put back, and other threads may change them meanwhile.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.patching.call_stack import CALL_STACK, CHANGE_LOCK, Frame
from ppdiffusers_tome.patching.override import list_overrides, walk_overrides
from ppdiffusers_tome.patching.overrides.denoiser import DenoiserOverride, find_timestep
from ppdiffusers_tome.patching.slots import list_functions
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.state.shared_values import CallIdentity, SharedValues

# The attribute of a layer that is compiled.
COMPILED = "_ppdiffusers_tome_compiled"


def make_twin(model: Layer, tensors: Mapping[int, Any]) -> Layer:
    """Copy a model's layers and ToMe, without its programs.

    Args:
        model: of known code alone, see ``Contents``.
        tensors: in place of its own, by the identity of these.
    """
    with CHANGE_LOCK:
        # Its settings, and what was warned of, are the model's.
        states = {id(each.state): each.state for each in walk_overrides(model)}
        compiled = (vars(layer).get(COMPILED) for layer in model.sublayers(include_self=True))
        # What runs around its programs is no part of them.
        around = [*list_functions(model), model._forward_pre_hooks, model._forward_post_hooks]
        memo = {**tensors, **states, **{id(each): None for each in (*compiled, *around) if each is not None}}
        twin = copy.deepcopy(model, memo)
    for layer in twin.sublayers(include_self=True):
        layer._built = True  # as Paddle marks it at its first call
    return twin


@dataclass(eq=False)
class StepCall:
    """The values that a twin's call takes from and leaves for other steps.

    To the overrides of the cache over steps it is a ``CachedCall``.
    """

    predicted: Mapping[str, Any] = field(default_factory=dict)  # the values of skipped layers, by path
    reductions: Mapping[Any, Any] = field(default_factory=dict)  # of an earlier step, by path, layout and batch
    stores_values: bool = False  # for later steps
    chains: dict[str, Any] = field(default_factory=dict)  # as of ``CachedCall``
    values: list[Any] = field(default_factory=list)  # of the layers that ran, kept for later steps
    stored: list[tuple[str, bool]] = field(default_factory=list)  # the path of each, and whether it has a slope
    made: dict[Any, Any] = field(default_factory=dict)  # the reductions that were made
    layouts: tuple[Layout, ...] = ()  # of the tokens of blocks that are on a grid
    timestep: Any = None  # that the model embedded
    has_skipped: bool = False  # a layer

    def skips(self, path: str) -> bool:
        """Return whether a layer is skipped."""
        return path in self.predicted

    def predict(self, path: str) -> Any:
        """Return the value of a layer that is skipped."""
        return self.predicted[path]

    def store(self, path: str, value: Any, *, has_slope: bool = True) -> None:
        """Keep the value of a layer that ran."""
        self.stored.append((path, has_slope))
        self.values.append(value)


def run_twin(
    twin: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: DenoiserCall | None, step: StepCall
) -> Any:
    """Compute a call by a twin, or trace it in static mode.

    ``call`` is that of the model for which the twin stands, None without ToMe; ``step`` gets what the call leaves.
    """
    overrides = [each for each in list_overrides(twin) if each.method_name == "forward"]
    denoiser = next((each for each in overrides if isinstance(each, DenoiserOverride)), None)
    run: Any = MethodType(type(twin).forward, twin)
    for override in reversed(overrides):
        if override is not denoiser:
            run = partial(override, run)
    outer = CALL_STACK.frames, CALL_STACK.pipeline_call
    try:
        CALL_STACK.frames, CALL_STACK.pipeline_call = (), None
        if call is None or denoiser is None:
            return run(*args, **kwargs)
        shared = SharedValues(CallIdentity(), dict(step.reductions))
        own = DenoiserCall(
            call.state, twin, given_timestep=find_timestep(denoiser.parameters, args, kwargs),
            progress=call.progress, shared=shared, cached=step,
        )  # fmt: skip
        if denoiser.reads_timestep:
            own.read_timestep()
        CALL_STACK.frames = (Frame(own),)
        try:
            output = run(*args, **kwargs)
        finally:
            step.timestep = own.timestep
        step.made = {key: made for key, made in shared.reductions.items() if key not in step.reductions}
        step.layouts = tuple(own.layouts.values())
        return output
    finally:
        CALL_STACK.frames, CALL_STACK.pipeline_call = outer
