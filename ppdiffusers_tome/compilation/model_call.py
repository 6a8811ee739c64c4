"""A call of a compiled model, and what passes between its steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.nn import Layer

from ppdiffusers_tome.compilation.arrays import share_memory
from ppdiffusers_tome.compilation.contents import Contents
from ppdiffusers_tome.compilation.structure import Structure, take_tensors
from ppdiffusers_tome.errors import UncompilableError
from ppdiffusers_tome.merging.grid import Layout
from ppdiffusers_tome.patching.arguments import list_parameters
from ppdiffusers_tome.patching.overrides.denoiser import TIMESTEPS
from ppdiffusers_tome.patching.state.block_call import WATCHERS
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.step_cache.cached_call import CachedCall, open_cached_call

_INPUT_TYPES = {"float32", "int64", "int32", "bool"}  # The types of tensors that a program takes.


class CallOutputs(NamedTuple):
    """The values that a call returns, or leaves for later steps."""

    returned: Any
    stored: list[tuple[str, Any, bool]]  # The path and value of each layer that ran, and whether that has a slope.
    reductions: dict[Any, Any]  # The reductions that were made, by path, layout and batch.
    has_skipped: bool  # Whether a layer was skipped.


class StepValues(NamedTuple):
    """Values that a call takes of earlier steps and keeps for later."""

    call: DenoiserCall | None = None  # None without ToMe
    predicted: Mapping[str, Any] = {}  # The values of the layers that are skipped, by path.
    reductions: Mapping[Any, Any] = {}  # The reductions that are used again.

    @property
    def stores_values(self) -> bool:
        """True in every step that a cache computes.

        It is True even where no later step needs the values, so that all computed steps have one program.
        """
        return self.call is not None and bool(self.call.state.config.cache) and not self.predicted

    @classmethod
    def read(cls, call: DenoiserCall) -> "StepValues":
        """Read what a call takes of earlier steps; its settings differ by step."""
        call.read_timestep()
        cached = open_cached_call(call) if call.state.config.cache else None
        predicted = cached.predict_all() if isinstance(cached, CachedCall) else {}
        shared = call.shared if call.state.config.reuse_steps > 1 else None
        return cls(call, predicted, {} if shared is None else dict(shared.reductions))

    def keep(self, outputs: CallOutputs) -> None:
        """Keep what later steps take of the call."""
        if self.call is None:
            return
        self.call.state.awaits_blocks = False
        if (cached := self.call.cached) is not None:
            cached.has_skipped = outputs.has_skipped
            for path, value, has_slope in outputs.stored if cached.stores_values else ():
                cached.store(path, value, has_slope=has_slope)
        if self.call.shared is not None:
            self.call.shared.reductions.update(outputs.reductions)


class CallKind(NamedTuple):
    """All that decides a call's program but the tokens that merge."""

    precision: str
    description_hash: str
    weights_hash: str
    arguments: Structure
    stores_values: bool
    shapes: tuple[tuple[tuple[int, ...], str], ...]  # The shape and type of each tensor.


@dataclass(frozen=True, eq=False)
class ModelCall:
    """A call of a model: all that its program is made of."""

    model: Layer
    contents: Contents
    precision: str
    # ``args``, ``kwargs``, predicted values, reductions and scales of IP-Adapters, as ``take_tensors`` separates them.
    arguments: Structure
    tensors: Sequence[paddle.Tensor]
    step_values: StepValues

    @property
    def kind(self) -> CallKind:
        """The kind of the call."""
        hashes = self.contents.description_hash, self.contents.reader.hash
        shapes = tuple((tuple(x.shape), str(x.dtype)) for x in self.tensors)
        return CallKind(self.precision, *hashes, self.arguments, self.step_values.stores_values, shapes)

    def count_merged(self, layouts: Iterable[Layout]) -> tuple[int, ...]:
        """Count the tokens that merge in each layout."""
        call = self.step_values.call
        return () if call is None else tuple(call.find_plan(layout).num_merged for layout in layouts)

    def require_compilable(self) -> None:
        """Refuse a call that no program computes."""
        contents, tensors = self.contents, self.tensors
        if contents.obstacle is not None:
            raise UncompilableError(contents.obstacle)
        if WATCHERS:
            raise UncompilableError("merging is being recorded")
        if paddle.is_grad_enabled() and any(not x.stop_gradient for x in (*tensors, *contents.tensors)):
            contents.reader.request()  # Training changes weights.
            raise UncompilableError("gradients are recorded; call it under paddle.no_grad()")
        if paddle.is_autocast_enabled():
            raise UncompilableError("paddle.amp.auto_cast is on")
        if not all(x.place.is_cpu_place() for x in tensors):
            raise UncompilableError("it gets tensors on a GPU; give them on the CPU")
        if others := {str(x.dtype).removeprefix("paddle.") for x in tensors} - _INPUT_TYPES:
            raise UncompilableError(f"it gets tensors in {', '.join(sorted(others))}; give float32")
        # Masks have -inf, so only +inf and NaN are looked for.
        if self.precision == "int8" and not all(x.max(initial=0) < np.inf for x in share_memory(*tensors)):
            raise UncompilableError("it gets NaN or infinity, which 8 bits would hide")


def replace_numbers(model: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace numbers that change from call to call by tensors.

    Numbers are constants of a program. A timestep with a fraction stays a number, as most models cut the fraction off
    a number, and not off a tensor.
    """

    def convert(name: str, value: Any) -> Any:
        if name == "cross_attention_kwargs" and isinstance(value, dict) and isinstance(value.get("scale"), float):
            return {**value, "scale": paddle.to_tensor(value["scale"], "float32", paddle.CPUPlace())}  # A LoRA's scale.
        if name == "conditioning_scale" and isinstance(value, float) and hasattr(model, "controlnet_down_blocks"):
            return paddle.to_tensor([value] * (len(model.controlnet_down_blocks) + 1), "float32", paddle.CPUPlace())
        is_whole = name in TIMESTEPS and isinstance(value, (int, float)) and value == value // 1
        return paddle.to_tensor([int(value)], "int64", paddle.CPUPlace()) if is_whole else value

    names = [*list_parameters(model), *[""] * len(args)]
    return tuple(map(convert, names, args)), {name: convert(name, value) for name, value in kwargs.items()}


def make_call(
    model: Layer, contents: Contents, precision: str, args: tuple[Any, ...], kwargs: Mapping[str, Any],
    step_values: StepValues,
) -> ModelCall:  # fmt: skip
    """Separate a call's tensors from what is constant in its program."""
    tensors: list[paddle.Tensor] = []
    scales = [paddle.to_tensor(each.scale, "float32", paddle.CPUPlace()) for each in contents.ip_adapters]
    arguments = take_tensors((args, kwargs, step_values.predicted, step_values.reductions, scales), tensors)
    return ModelCall(model, contents, precision, arguments, tensors, step_values)
