"""Schedulers by their usual names. Imports no Paddle until one is made."""

from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.units import format_count

SCHEDULERS = {
    "ddim": "DDIMScheduler",
    "dpmsolver++": "DPMSolverMultistepScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler-a": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lcm": "LCMScheduler",
    "lms": "LMSDiscreteScheduler",
    "pndm": "PNDMScheduler",
}


def make_scheduler(name: str, config: Any) -> Any:
    """Make one of ``SCHEDULERS`` with the noise levels of another's config."""
    import ppdiffusers

    # As in all Stable Diffusion models, PNDM's first steps are not Runge-Kutta steps: with those, images of the small
    # models are distorted.
    overrides = {"skip_prk_steps": True} if name == "pndm" else {}
    return getattr(ppdiffusers, SCHEDULERS[name]).from_config(config, **overrides)


def check_scheduler(scheduler: Any, steps: int, *, may_scale: bool = True) -> None:
    """Check on a tiny latent that a scheduler can run.

    ppdiffusers 0.29's UniPC, for example, fails on Paddle 3, and PNDM in a single step.

    Args:
        scheduler: of the pipeline; it stays as it is.
        steps: of an image.
        may_scale: False for a DiTPipeline, which continues with the latent that was scaled for the model.
    """
    import paddle

    name, trial = type(scheduler).__name__, type(scheduler).from_config(scheduler.config)
    latent = paddle.ones([1, 4, 2, 2])
    try:
        trial.set_timesteps(steps)
        scaled = trial.scale_model_input(latent, trial.timesteps[0])
        if not may_scale and (scaled != latent).any():
            raise ValueError("it scales the latents, and a DiTPipeline would continue with the scaled ones")
        for timestep in trial.timesteps:
            latent = trial.step(trial.scale_model_input(latent, timestep) * 0, timestep, latent).prev_sample
    except Exception as error:  # of ppdiffusers or Paddle
        reason, many = " ".join(str(error).split())[:120], format_count(steps, "step")
        raise UserError(
            f"the model's {name} cannot run {many} here ({type(error).__name__}: {reason}); give another --scheduler, "
            "such as ddim or dpmsolver++, or other --steps"
        ) from error
