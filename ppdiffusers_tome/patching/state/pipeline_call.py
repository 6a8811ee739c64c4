"""A call of a pipeline, and the denoisings of its denoisers.

Calls of a denoiser that are not known to belong together share nothing over steps: they are slower then, never wrong.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from paddle.nn import Layer

from ppdiffusers_tome.patching.layers import is_a
from ppdiffusers_tome.patching.models import list_models, list_schedulers
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState, StepReport
from ppdiffusers_tome.patching.state.shared_values import CallIdentity, SharedValues, list_tensors
from ppdiffusers_tome.patching.state.steps import Step, StepFinder, TimestepList

# Schedulers whose list ends with the finished image, for which no denoiser is called.
_END_IN_LIST = ("DDPMWuerstchenScheduler",)


class Denoising:
    """The steps and calls of one denoiser in a call of its pipeline."""

    def __init__(self, pipe: Any, name: str, state: DenoiserState) -> None:
        self._pipe, self._name, self._state = pipe, name, state
        self._finder = StepFinder()
        # By the id of a scheduler's own list, which is kept so that no other gets that id.
        self._lists: dict[int, tuple[Any, TimestepList]] = {}
        self._step: Step | None = None  # the last one entered
        self._previous: list[SharedValues] = []  # of the calls of the step before
        self._present: list[SharedValues] = []  # of the calls of this step
        self._has_later_step = False  # True once a step followed another of its run, with which it may share
        self._has_shared = False  # True once a call got values of the step before
        self._report = StepReport()
        self.scheduler: Any = None  # of the denoiser, at its last call
        # Of the present run, by number; None until the cache over steps chooses them.
        self.skipped_steps: frozenset[int] | None = None
        self._has_merging_step = self._has_unmerged_step = False

    def enter_step(self, timestep: float) -> Step | None:
        """Enter the step of the call that begins; None on no list."""
        schedulers = list(list_schedulers(self._pipe, self._name))
        lists = [self._read_timesteps(each) for each in schedulers]
        self.scheduler = schedulers[0]
        # Pipelines with ``denoising_end`` cut their list, which their scheduler does not know.
        step = self._finder.enter_step(lists, timestep, vars(self._pipe).get("_num_timesteps"))
        if step is None or step is self._step:
            return step
        if step.number == 0:  # another run begins
            self._present, self.skipped_steps = [], None
        self._has_later_step |= step.number > 0
        self._step, self._previous, self._present = step, self._present, []
        return step

    def note_step(self, *, merges: bool) -> None:
        """Note that blocks ran in a step, and whether the ratio let tokens merge."""
        self._has_merging_step |= merges
        self._has_unmerged_step |= not merges

    def _read_timesteps(self, scheduler: Any) -> TimestepList:
        """Read a list of timesteps once, as that waits for the device."""
        source = scheduler.timesteps
        if id(source) not in self._lists:
            array = source.astype("float64").numpy() if hasattr(source, "numpy") else np.asarray(source, "float64")
            numbers = array.reshape(-1).tolist()
            self._lists[id(source)] = source, TimestepList(numbers[:-1] if is_a(scheduler, *_END_IN_LIST) else numbers)
        return self._lists[id(source)][1]

    def share_values(self, step: Step, identity: CallIdentity) -> SharedValues:
        """Return the values that a call shares with earlier steps.

        A step may call the denoiser several times: for the prompted and the unprompted half, or for two images in
        turns. A call shares the values of the previous step's call with the same identity, if exactly one exists.
        """
        values = SharedValues(identity)
        found = [each for each in self._previous if each.identity.matches(identity)]
        # One call cannot be two of the next step.
        if len(found) == 1 and all(each.histories is not found[0].histories for each in self._present):
            self._has_shared = True
            values.histories = found[0].histories
            if step.number % self._state.config.reuse_steps > 0:
                values.reductions = found[0].reductions
        self._present.append(values)
        return values

    def count_call(self, step: Step | None, *, is_skipped: bool) -> None:
        """Count a call that ended."""
        steps = () if step is None or is_skipped else (step.place,)
        self._report += StepReport(int(not is_skipped), int(is_skipped), computed_steps=steps)

    def end(self, *, is_complete: bool) -> None:
        """Report cached steps; warn of settings that had no effect."""
        state, config = self._state, self._state.config
        if config.cache:
            kept = {id(x): x for values in self._present for x in list_tensors(values.histories)}  # each once
            cache_bytes = sum(x.size * x.element_size() for x in kept.values())
            state.last_image = replace(self._report, cache_bytes=cache_bytes)
        if not is_complete or vars(self._pipe).get("_interrupt"):
            return
        if config.shares_steps and self._has_later_step and not self._has_shared:
            state.warn_once(
                "the steps of this image shared nothing, so cache and reuse_steps have no effect here: calls that "
                "record gradients do not (use paddle.no_grad()), nor those that cannot be told apart from step to "
                "step, as what they get beside the latents is new in every step, or the same in several calls of one"
            )
        if (config.start > 0 or config.end < 1) and self._has_merging_step != self._has_unmerged_step:
            state.warn_once(
                f"{'every' if self._has_merging_step else 'no'} step of this image merges with "
                f"start={config.start:g} and end={config.end:g}: img2img runs only the last part of the "
                "denoising, of N steps the last begins at 1 - 1/N, and a cache may skip those inside; choose other "
                "bounds, or more steps"
            )


class PipelineCall:
    """A call of a pipeline, with the denoisings of its denoisers."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._denoisings: dict[DenoiserState, Denoising | None] = {}

    def find_denoising(self, state: DenoiserState, denoiser: Layer) -> Denoising | None:
        """Return a denoiser's denoising in this call, or None.

        A pipeline without a scheduler has none, nor has a model that a callback calls: the steps are not its own.
        """
        if state not in self._denoisings:
            names = (
                name for name, model in list_models(self._pipe)
                if any(layer is denoiser for layer in model.sublayers(include_self=True))
                and next(list_schedulers(self._pipe, name), None) is not None
            )  # fmt: skip
            name = next(names, None)
            self._denoisings[state] = None if name is None else Denoising(self._pipe, name, state)
        return self._denoisings[state]

    def end(self, *, is_complete: bool) -> None:
        """End the denoisings and free all that they share."""
        denoisings, self._denoisings = self._denoisings, {}
        for denoising in filter(None, denoisings.values()):
            denoising.end(is_complete=is_complete)
