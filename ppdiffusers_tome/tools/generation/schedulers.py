"""Schedulers by the names people use for them. Knows no Paddle until one is built."""

from __future__ import annotations

from typing import Any

SCHEDULERS = {
    "ddim": "DDIMScheduler",
    "dpmsolver++": "DPMSolverMultistepScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler-a": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lms": "LMSDiscreteScheduler",
    "pndm": "PNDMScheduler",
}
# Left out: ppdiffusers 0.29's UniPCMultistepScheduler fails on Paddle 3.3.1 (its `linalg.solve` gets two dtypes).

# Settings that a scheduler needs besides the model's: as all Stable Diffusion models have it, PNDM's first steps are
# not Runge-Kutta steps; with those, pictures of the bundled model came out distorted.
_EXTRA = {"pndm": {"skip_prk_steps": True}}


def scales_latents(scheduler: Any) -> bool:
    """Whether a model is to be given another latent than the scheduler steps on, as Euler's and its kin's are."""
    import paddle

    scheduler.set_timesteps(2)
    latent = paddle.ones([1, 1, 2, 2])
    return bool((scheduler.scale_model_input(latent, scheduler.timesteps[0]) != latent).any())


def make_scheduler(name: str, config: Any) -> Any:
    """Build a scheduler for a model.

    Args:
        name: one of ``SCHEDULERS``.
        config: the configuration of the model's own scheduler, from which noise levels and prediction type come.
    """
    import ppdiffusers

    return getattr(ppdiffusers, SCHEDULERS[name]).from_config(config, **_EXTRA.get(name, {}))
