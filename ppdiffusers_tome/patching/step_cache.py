"""The cache over steps: some calls skip most layers.

Merging makes a call cheaper; this makes some calls skip most of their layers. A skipped step adds what those layers
added in the last computed step, moved along a share of the slope between the last two (TaylorSeer, arXiv 2503.06923,
has the whole slope). ``settings/step_schedule.py`` chooses the steps; all else is here: the values of layers over
steps, the plan of a denoising, and the overrides of the layers that a skipped step does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.patching.adapters.adapter import ROLES, UNETS
from ppdiffusers_tome.patching.arguments import find_arguments
from ppdiffusers_tome.patching.blocks import MergeableBlock, find_blocks, find_family, is_a
from ppdiffusers_tome.patching.override import Original, Override
from ppdiffusers_tome.patching.paddle_compat import require_eager
from ppdiffusers_tome.patching.processors import find_processor, stores_maps
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS, UNET, choose_computed_steps
from ppdiffusers_tome.settings.text import format_count, format_setting

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
    from ppdiffusers_tome.patching.state.steps import Step

# The share of the slope that a skipped step follows; all of it overshoots where values curve.
SLOPE = 0.75


@dataclass
class History:
    """The value of a layer in the computed steps, extrapolated to others.

    Attributes:
        time: of the last computed step, see ``Step.time``.
        value: a tensor, or tuples and lists of tensors.
        slope: its change over time between the last two computed times; None before the second.
        is_repeated: True where the layer ran several times in one call, so that it cannot be predicted.
    """

    time: int | None = None
    value: Any = None
    slope: Any = None
    is_repeated: bool = False

    def add(self, time: int | None, value: Any) -> None:
        """Store a computed step's value, without a slope where time is None."""
        # Two steps of one timestep, as of Heun, have no distance: the slope stays that of the steps before.
        if time is not None and self.time is not None and time != self.time:
            distance = time - self.time
            self.slope = map_tensors(lambda new, old: (new - old) / distance, value, self.value)
        self.time, self.value = time, value

    def predict(self, time: int) -> Any:
        """Return a skipped step's value, along ``SLOPE`` of the slope."""
        if self.slope is None or self.time is None:
            return self.value
        distance = SLOPE * (time - self.time)
        return map_tensors(lambda value, slope: value + slope * distance, self.value, self.slope)


@dataclass(frozen=True)
class StepReport:
    """The calls of a denoiser in one image.

    There is one a step or, with guidance in calls of its own, two; several ControlNets with one config add up theirs.

    Attributes:
        num_computed, num_skipped: calls that ran all layers, and calls in which the cache over steps skipped most.
        cache_bytes: the memory of the cache over steps at the end of the image.
        computed_steps: the steps that ran all layers, by number in their run of steps, where the pipeline's scheduler
            tells them.
    """

    num_computed: int = 0
    num_skipped: int = 0
    cache_bytes: int = 0
    computed_steps: tuple[int, ...] = ()

    def __add__(self, report: StepReport) -> StepReport:
        return StepReport(
            self.num_computed + report.num_computed, self.num_skipped + report.num_skipped,
            self.cache_bytes + report.cache_bytes, tuple(sorted({*self.computed_steps, *report.computed_steps})),
        )  # fmt: skip


@dataclass
class CachedCall:
    """One call of a denoiser with a cache over steps.

    Attributes:
        time: see ``Step.time``.
        is_computed: True in a step that runs all layers.
        stores_values: True in a computed step before a skipped one.
        histories: of the layers in the calls of the steps before that belong to this one.
        stacks: the inputs of the stacks of blocks that run now, or their predicted outputs in a skipped step.
        record: called with the key and value of each stored layer; None outside of tuning.
        has_skipped: True once a layer was skipped.
    """

    time: int
    is_computed: bool
    stores_values: bool
    histories: dict[Hashable, History]
    stacks: dict[Hashable, Sequence[Any]] = field(default_factory=dict)
    record: Callable[[Hashable, Any], None] | None = None
    has_skipped: bool = False
    _stored: set[Hashable] = field(default_factory=set)

    def skips(self, key: Hashable) -> bool:
        """Return whether a layer is skipped, which requires an earlier step."""
        return not self.is_computed and key in self.histories and not self.histories[key].is_repeated

    def store(self, key: Hashable, value: Any, *, has_slope: bool = True) -> None:
        """Store the value of a layer in a computed step."""
        history = self.histories.setdefault(key, History())
        if key in self._stored:
            history.is_repeated = True  # a layer that runs several times in a call has no one value
            return
        self._stored.add(key)
        history.add(self.time if has_slope else None, value)
        if self.record is not None and has_slope:
            self.record(key, value)

    def predict(self, key: Hashable) -> Any:
        """Return the value of a layer in a skipped step."""
        self.has_skipped = True
        return self.histories[key].predict(self.time)


class StepCache:
    """The cache over steps of one denoiser in one denoising.

    Args:
        config: the settings.
        scheduler: of the denoiser in its pipeline, or None.

    Attributes:
        report: the calls that ended.
        computed_steps: of the run of steps, by number.
    """

    def __init__(self, config: ToMeConfig, scheduler: Any) -> None:
        self._config, self._scheduler = config, scheduler
        self.report = StepReport()
        self.computed_steps: frozenset[int] = frozenset()
        self._stores_maps = False

    def begin_step(self, call: DenoiserCall, step: Step) -> None:
        """Choose the computed steps of a run that begins; warn of misfits."""
        if step.continues or step.number is None or not self._config.cache:
            return
        cache, family, warn = self._config.cache, find_family(call.denoiser), call.state.warn_once
        num_steps, is_noise = step.num_steps or 1, predicts_noise(self._scheduler, family)
        self.computed_steps = choose_computed_steps(num_steps, cache, family, predicts_noise=is_noise)
        processors = {find_processor(layer) for layer in call.denoiser.sublayers()}
        self._stores_maps = any(stores_maps(processor, role) for processor in processors for role in ROLES)
        if self._stores_maps:
            warn(
                "cache with maps",
                "this pipeline reads the attention maps of each step, so all steps are computed; the cache over steps "
                "has no effect here",
            )
        if len(self.computed_steps) == num_steps and call.state.record is None:
            warn(
                "nothing to skip",
                f"cache={format_setting(cache)} leaves nothing to skip in a denoising of "
                f"{format_count(num_steps, 'step')}, so they are computed; give a greater fraction, which skips steps "
                f"of {MIN_STEPS} or more that follow one another, or list fewer steps",
            )
        if isinstance(cache, tuple) and cache[-1] + 1 != num_steps:
            warn(
                "other steps",
                f"the list in cache is for {cache[-1] + 1} steps and this denoising has {num_steps}, so listed steps "
                "keep their places as fractions of the denoising; choose them again (ppdiffusers_tome.tune)",
            )

    def begin_call(self, call: DenoiserCall, step: Step, histories: dict[Hashable, History]) -> CachedCall | None:
        """Begin a call with the histories of the steps before; None: all layers run."""
        number, num_steps, record = step.number, step.num_steps, call.state.record
        if self._stores_maps or number is None or num_steps is None:
            return None
        is_before_skipped = any(each not in self.computed_steps for each in range(number + 1, num_steps))
        return CachedCall(
            time=step.time,
            is_computed=number in self.computed_steps or number >= num_steps or not histories,
            stores_values=is_before_skipped or record is not None,
            histories=histories,
            record=None if record is None else partial(record, number),
        )

    def end_call(self, step: Step | None, cached_call: CachedCall | None) -> None:
        """Count a call that ended."""
        is_skipped = cached_call is not None and cached_call.has_skipped
        steps = () if step is None or step.number is None or is_skipped else (step.number,)
        self.report += StepReport(int(not is_skipped), int(is_skipped), computed_steps=steps)


class StackOverride(Override):
    """The override of a block in a stack of consecutive blocks.

    The whole stack has one residual, its output minus its input (FreqCa, arXiv 2510.08669). In a skipped step every
    block returns its input, and the last one returns the input of the first plus the predicted residual. That sum is
    made where the first block runs, as a model may change tokens in place between two blocks (FLUX with a ControlNet).

    ``stack`` is the path of the stack in its denoiser. ``outputs`` are the arguments, by position or name, whose new
    values the block returns, in that order. ``is_last`` is True for the last block of the stack.
    """

    def __init__(
        self, state: DenoiserState, layer: Layer, stack: str, outputs: tuple[int | str, ...], *, is_last: bool
    ) -> None:
        super().__init__(state, layer)
        self.stack, self.outputs, self.is_last = stack, outputs, is_last

    def run(self, call: DenoiserCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run the block, or return what the stack is predicted to."""
        cached = call.cached_call
        inputs = None if cached is None else find_arguments(self.layer, args, kwargs, self.outputs)
        if cached is None or inputs is None:
            return original(*args, **kwargs)
        require_eager("a cache over steps")
        if cached.skips(self.stack):
            if self.stack not in cached.stacks:
                cached.stacks[self.stack] = [
                    None if residual is None else tokens + residual
                    for tokens, residual in zip(inputs, cached.predict(self.stack), strict=True)
                ]
            outputs = cached.stacks.pop(self.stack) if self.is_last else inputs
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        if cached.stores_values:
            cached.stacks.setdefault(self.stack, inputs)
        output = original(*args, **kwargs)
        entered = cached.stacks.pop(self.stack, None) if self.is_last else None
        if entered is not None:
            outputs = output if isinstance(output, (list, tuple)) else (output,)
            cached.store(
                self.stack,
                tuple(None if new is None else new - old for new, old in zip(outputs, entered, strict=False)),
            )
        return output


class CoarseOverride(Override):
    """The override of a coarse level of a UNet (DeepCache, CVPR 2024).

    Only the last of them has an output that a skipped step uses; the others return those of the last computed step,
    which nothing reads. The used one is copied, as what follows may change it in place (FreeU).
    """

    def __init__(self, state: DenoiserState, layer: Layer, *, is_used: bool) -> None:
        super().__init__(state, layer)
        self.is_used = is_used

    def run(self, call: DenoiserCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run the level, or return its predicted output."""
        cached = call.cached_call
        if cached is None:
            return original(*args, **kwargs)
        require_eager("a cache over steps")
        if cached.skips(self):
            predicted = cached.predict(self)
            return map_tensors(paddle.clone, predicted) if self.is_used else predicted
        output = original(*args, **kwargs)
        if cached.stores_values:
            cached.store(self, map_tensors(paddle.clone, output) if self.is_used else output, has_slope=self.is_used)
        return output


def attach_step_cache(state: DenoiserState, denoiser: Layer) -> None:
    """Put the overrides of the cache over steps around those that merge.

    Every block that an adapter describes is in a stack, also if its tokens do not merge now. Blocks with other layers
    between them, which would run in a skipped step, are stacks of their own. A ControlNet hands on what its levels and
    blocks return, so all of these are predicted.
    """
    is_controlnet = any("ControlNet" in cls.__name__ or cls.__name__ == "VCtrlModel" for cls in type(denoiser).__mro__)
    levels = _list_coarse_levels(denoiser, is_controlnet)
    for level, is_used in levels:
        CoarseOverride(state, level, is_used=is_used).put()
    skipped = {id(layer) for level, _ in levels for layer in level.sublayers(include_self=True)}
    stacks: dict[str, list[MergeableBlock]] = {}
    for block in find_blocks(denoiser):
        if id(block.block) not in skipped:
            is_alone = is_controlnet or block.adapter.block_is_parent
            container = block.name if is_alone else block.name.rpartition(".")[0]
            stacks.setdefault(container, []).append(block)
    for stack, blocks in stacks.items():
        for block in blocks:
            StackOverride(state, block.block, stack, block.adapter.outputs, is_last=block is blocks[-1]).put()


def _list_coarse_levels(denoiser: Layer, is_controlnet: bool) -> list[tuple[Layer, bool]]:
    """Return levels that skipped steps omit, and whether outputs are used."""
    unet = UNETS[0]  # that of ppdiffusers, whose levels are layers with a ``forward``
    down, up = (list(getattr(denoiser, name, ())) for name in (unet.down, unet.up))
    middle = [layer for layer in [getattr(denoiser, unet.middle, None)] if layer is not None]
    if is_controlnet:
        return [(level, True) for level in [*down, *middle]]
    coarse = [*down[1:], *middle, *up[:-1]] if up else []
    if any(is_a(level, "LayerList") for level in coarse):  # the UNet runs what is in it
        return []
    return [(level, level is coarse[-1]) for level in coarse]


def predicts_noise(scheduler: Any, family: str) -> bool:
    """Return whether a scheduler takes its denoiser's output for noise.

    One that does not say so is for noise if it is a UNet's (RePaint, Würstchen). EDM's schedulers say ``epsilon`` of a
    denoiser whose scaled output is part of the image (Karras et al. 2022, section 5).
    """
    config = getattr(scheduler, "config", None)
    kind = config.get("prediction_type") if isinstance(config, Mapping) else getattr(config, "prediction_type", None)
    return (family == UNET if kind is None else kind == "epsilon") and not type(scheduler).__name__.startswith("EDM")


def count_bytes(histories: Iterable[History]) -> int:
    """Count the memory of the stored tensors, each once."""
    sizes: dict[int, int] = {}
    for history in histories:
        for stored in (history.value, history.slope):
            map_tensors(lambda tensor: sizes.update({id(tensor): tensor.size * tensor.element_size()}), stored)
    return sum(sizes.values())


def map_tensors(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to the tensors in nested values of one structure."""
    first = values[0]
    if isinstance(first, paddle.Tensor):
        return function(*values)
    if isinstance(first, (list, tuple)):
        return type(first)([map_tensors(function, *items) for items in zip(*values, strict=True)])
    return first
