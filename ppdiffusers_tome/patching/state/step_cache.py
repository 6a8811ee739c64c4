"""The cache over steps: some calls skip most layers.

Merging makes a call cheaper; this makes some calls skip most of their layers. A skipped step adds what those layers
added in the last computed step, moved along a share of the slope between the last two (TaylorSeer, arXiv 2503.06923,
has the whole slope). ``settings/step_schedule.py`` chooses the steps, ``overrides/stacks.py`` has the layers that a
skipped step does not run, ``step_memory.py`` their values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.patching.adapters.adapter import ROLES
from ppdiffusers_tome.patching.blocks import find_family
from ppdiffusers_tome.patching.processors import find_processor, stores_maps
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.step_memory import History, StepReport
from ppdiffusers_tome.patching.state.steps import Step
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS, UNET, choose_computed_steps
from ppdiffusers_tome.settings.text import format_count, format_setting


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
        state: of the denoiser.
        scheduler: of the denoiser in its pipeline, or None.

    Attributes:
        report: the calls that ended.
        computed_steps: of the run of steps, by number.
    """

    def __init__(self, state: DenoiserState, scheduler: Any) -> None:
        self._state, self._scheduler = state, scheduler
        self.report = StepReport()
        self.computed_steps: frozenset[int] = frozenset()
        self._stores_maps = False

    def begin_step(self, denoiser: Layer, step: Step) -> None:
        """Choose the computed steps of a run that begins; warn of misfits."""
        cache, warn = self._state.config.cache, self._state.warn_once
        if step.continues or step.number is None or not cache:
            return
        num_steps, family = step.num_steps or 1, find_family(denoiser)
        is_noise = predicts_noise(self._scheduler, family)
        self.computed_steps = choose_computed_steps(num_steps, cache, family, predicts_noise=is_noise)
        processors = {find_processor(layer) for layer in denoiser.sublayers()}
        self._stores_maps = any(stores_maps(processor, role) for processor in processors for role in ROLES)
        if self._stores_maps:
            warn(
                "cache with maps",
                "this pipeline reads the attention maps of each step, so all steps are computed; the cache over steps "
                "has no effect here",
            )
        if len(self.computed_steps) == num_steps and self._state.record is None:
            warn(
                "nothing to skip",
                f"cache={format_setting(cache)} leaves nothing to skip in a denoising of "
                f"{format_count(num_steps, 'step')}, so they are computed; give a greater fraction, which skips steps "
                f"of {MIN_STEPS} or more that follow one another, or list fewer steps",
            )
        if isinstance(cache, tuple) and cache[-1] + 1 != num_steps:
            warn(
                "other steps",
                f"the list in cache is for {cache[-1] + 1} steps and this denoising has {num_steps}, so as large a "
                "fraction is skipped by the rule of the model's family; choose its steps again (ppdiffusers_tome.tune)",
            )

    def begin_call(self, step: Step, histories: dict[Hashable, History]) -> CachedCall | None:
        """Begin a call with earlier steps' histories; None: all layers run."""
        number, num_steps, record = step.number, step.num_steps, self._state.record
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


def predicts_noise(scheduler: Any, family: str) -> bool:
    """Return whether a scheduler takes its denoiser's output for noise.

    One that does not say so is for noise if it is a UNet's (RePaint, Würstchen). EDM's schedulers say ``epsilon`` of a
    denoiser whose scaled output is part of the image (Karras et al. 2022, section 5).
    """
    config = getattr(scheduler, "config", None)
    kind = config.get("prediction_type") if isinstance(config, Mapping) else getattr(config, "prediction_type", None)
    return (family == UNET if kind is None else kind == "epsilon") and not type(scheduler).__name__.startswith("EDM")
