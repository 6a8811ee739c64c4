"""The choice of the steps that a denoising skips."""

from collections.abc import Mapping
from typing import Any

from ppdiffusers_tome.patching.adapters.adapter import ROLES
from ppdiffusers_tome.patching.denoisers import find_family
from ppdiffusers_tome.patching.processors import find_processor, stores_maps
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS, UNET, choose_computed_steps
from ppdiffusers_tome.settings.text import format_count, format_setting


def choose_skipped_steps(call: DenoiserCall, scheduler: Any, num_steps: int) -> frozenset[int]:
    """Choose the skipped steps of the run that a call begins; warn of misfits."""
    cache, family = call.state.config.cache, find_family(call.denoiser)
    is_noise = predicts_noise(scheduler, family)
    skipped = frozenset(range(num_steps)) - choose_computed_steps(num_steps, cache, family, predicts_noise=is_noise)
    processors = {find_processor(layer) for layer in call.denoiser.sublayers()}
    if any(stores_maps(processor, role) for processor in processors for role in ROLES):
        call.state.warn_once(
            "this pipeline reads the attention maps of each step, so all steps are computed; the cache over steps has "
            "no effect here"
        )
        return frozenset()
    if not skipped:
        remedy = "give a greater fraction" if num_steps >= MIN_STEPS else f"a cache needs {MIN_STEPS} steps or more"
        call.state.warn_once(
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
