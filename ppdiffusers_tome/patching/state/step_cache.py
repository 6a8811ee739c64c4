"""The cache over steps: some calls skip most layers.

Merging makes a call cheaper; this makes some calls skip most of their layers. A skipped step adds what those layers
added in the last computed step, moved along a share of the slope between the last two (TaylorSeer, arXiv 2503.06923,
has the whole slope). ``settings/step_schedule.py`` chooses the steps, ``overrides/stacks.py`` has the layers that a
skipped step does not run, ``step_memory.py`` their values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.patching.adapters.adapter import ROLES
from ppdiffusers_tome.patching.blocks import find_family
from ppdiffusers_tome.patching.processors import find_processor, stores_maps
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.step_memory import History
from ppdiffusers_tome.patching.state.steps import Step
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS, UNET, choose_computed_steps
from ppdiffusers_tome.settings.text import format_count, format_setting


class CachedCall:
    """One call of a denoiser with a cache over steps.

    Args:
        step: of the call.
        skipped_steps: of its run.
        histories: of the layers, from the calls of the steps before that belong to this one.

    Attributes:
        stores_values: True in a step before a skipped one.
        stacks: the inputs of the stacks of blocks that run now, or their predicted outputs in a skipped step.
        has_skipped: True once a layer was skipped.
    """

    def __init__(self, step: Step, skipped_steps: frozenset[int], histories: dict[Hashable, History]) -> None:
        self._step, self._histories = step, histories
        self._is_skipped = step.number in skipped_steps
        self.stores_values = step.number < max(skipped_steps, default=0)
        self.stacks: dict[Hashable, Sequence[Any]] = {}
        self.has_skipped = False
        self._stored: set[Hashable] = set()

    def skips(self, key: Hashable) -> bool:
        """Return whether a layer is skipped, which requires an earlier step."""
        return self._is_skipped and key in self._histories and not self._histories[key].is_repeated

    def store(self, key: Hashable, value: Any, *, has_slope: bool = True) -> None:
        """Store the value of a layer that ran."""
        history = self._histories.setdefault(key, History())
        history.is_repeated |= key in self._stored
        self._stored.add(key)
        if not history.is_repeated:
            history.add(self._step.time if has_slope else None, value)

    def predict(self, key: Hashable) -> Any:
        """Return the value of a layer in a skipped step."""
        self.has_skipped = True
        return self._histories[key].predict(self._step.time)


def choose_skipped_steps(state: DenoiserState, denoiser: Layer, scheduler: Any, num_steps: int) -> frozenset[int]:
    """Choose the skipped steps of a run that begins; warn of misfits."""
    cache, family = state.config.cache, find_family(denoiser)
    is_noise = predicts_noise(scheduler, family)
    skipped = frozenset(range(num_steps)) - choose_computed_steps(num_steps, cache, family, predicts_noise=is_noise)
    processors = {find_processor(layer) for layer in denoiser.sublayers()}
    if any(stores_maps(processor, role) for processor in processors for role in ROLES):
        state.warn_once(
            "this pipeline reads the attention maps of each step, so all steps are computed; the cache over steps has "
            "no effect here"
        )
        return frozenset()
    if not skipped:
        remedy = "give a greater fraction" if num_steps >= MIN_STEPS else f"a cache needs {MIN_STEPS} steps or more"
        state.warn_once(
            f"cache={format_setting(cache)} leaves nothing to skip in a denoising of "
            f"{format_count(num_steps, 'step')}, so all are computed; {remedy}"
        )
    return skipped


def predicts_noise(scheduler: Any, family: str) -> bool:
    """Return whether a scheduler takes its denoiser's output for noise.

    One that does not say so is for noise if it is a UNet's (RePaint, Würstchen). EDM's schedulers say ``epsilon`` of a
    denoiser whose scaled output is part of the image (Karras et al. 2022, section 5).
    """
    config = getattr(scheduler, "config", None)
    kind = config.get("prediction_type") if isinstance(config, Mapping) else getattr(config, "prediction_type", None)
    return (family == UNET if kind is None else kind == "epsilon") and not type(scheduler).__name__.startswith("EDM")
