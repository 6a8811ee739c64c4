"""The moment of a denoising at which its denoiser is called."""

from typing import NamedTuple

from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.pipeline_call import Denoising
from ppdiffusers_tome.patching.state.shared_values import CallIdentity, SharedValues
from ppdiffusers_tome.patching.state.steps import Step
from ppdiffusers_tome.settings.config import ToMeConfig


class Moment(NamedTuple):
    """The moment of a call in its denoising, as far as it is known."""

    progress: float | None = None  # from 0, pure noise, to 1, the image; None if unknown
    step: Step | None = None  # None outside of a pipeline, or at a timestep on no list
    shared: SharedValues | None = None  # with other steps; None where the call shares nothing


UNKNOWN = Moment()


def list_step_settings(config: ToMeConfig, *, is_eager: bool) -> list[str]:
    """List the settings for which a call has to know its moment."""
    names = {
        "a ratio that changes over the denoising, start or end": config.uses_progress,
        "a cache over steps": bool(config.cache),
        "reuse_steps": config.reuse_steps > 1 and is_eager,  # a program has no values while it is traced
    }
    return [name for name, is_used in names.items() if is_used]


def enter_moment(
    state: DenoiserState, denoising: Denoising | None, timestep: float, identity: CallIdentity | None
) -> Moment:
    """Find the moment of a call that begins; warn where it is unknown.

    Without an ``identity`` the call shares nothing.
    """
    highest = state.max_timestep
    step = None if denoising is None else denoising.enter_step(timestep)
    progress = None if step is None else step.progress
    if denoising is None and 0 <= timestep <= highest:
        progress = (highest - timestep) / highest
    if progress is None and state.config.uses_progress:
        state.warn_once(
            "the timestep of a call is on no list of its pipeline's scheduler or, without a pipeline, outside 0 to "
            f"{highest:g}, so the progress of the denoising is unknown and it runs unmerged; call the model "
            "through a pipeline that returns its images (if you replaced the __call__ of its class, call "
            "ppdiffusers_tome.install() again), or give one ratio for the whole denoising"
        )
    shared = None
    if identity is not None and denoising is not None and step is not None:
        shared = denoising.share_values(step, identity)
    elif identity is not None:
        state.warn_once(
            "steps are known only in a call of a pipeline, at timesteps on the list of its scheduler, so cache and "
            "reuse_steps have no effect here"
        )
    return Moment(progress, step, shared)
