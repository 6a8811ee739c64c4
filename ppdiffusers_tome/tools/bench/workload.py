"""What is timed, the same for all contenders: a UNet over a short schedule, or a whole pipeline call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.tools.bench.attention import set_attention
from ppdiffusers_tome.tools.bench.contenders import denoiser
from ppdiffusers_tome.tools.bench.plan import Plan, Setting
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS, random_unet
from ppdiffusers_tome.tools.generation.device import check_device
from ppdiffusers_tome.tools.generation.model_sources import find_model

TEXT_TOKENS = 77
PROMPT = "a photo of a cat"


@dataclass(frozen=True)
class Workload:
    """One setting, loaded.

    Attributes:
        model_or_pipe: what contenders are put on.
        run: run it with that many denoising steps.
        units: UNet calls of a run over ``plan.steps``, or pictures; seconds are told for one.
    """

    model_or_pipe: Any
    run: Callable[[int], None]
    units: int


def load_workload(plan: Plan, setting: Setting) -> Workload:
    """Load what a setting needs.

    Raises:
        UserError: the model cannot be loaded, or this device cannot run it so.
    """
    check_device(plan.dtype, xformers=False)
    workload = (_unet_workload if plan.what == "unet" else _pipeline_workload)(plan, setting)
    set_attention(denoiser(workload.model_or_pipe), setting.attention)
    return workload


def _unet_workload(plan: Plan, setting: Setting) -> Workload:
    import numpy as np
    import paddle

    from ppdiffusers_tome.tools.generation.model_loader import load_unet

    if plan.model in RANDOM_UNETS:
        unet = random_unet(plan.model, dtype=plan.dtype)
    else:
        unet = load_unet(find_model(plan.model), dtype=plan.dtype)
    side, config, dtype = setting.size // 8, unet.config, getattr(paddle, plan.dtype)
    rng = np.random.default_rng(plan.seed)

    def normal(*shape: int) -> Any:
        return paddle.to_tensor(rng.standard_normal(shape, np.float32)).cast(dtype)

    latents = [normal(setting.batch, config.in_channels, side, side) for _ in range(plan.steps)]
    timesteps = [paddle.to_tensor(999 - 1000 * step // plan.steps, dtype="int64") for step in range(plan.steps)]
    text = normal(setting.batch, TEXT_TOKENS, config.cross_attention_dim)
    more: dict[str, Any] = {}
    if config.get("addition_embed_type") == "text_time":  # SDXL
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        ids = paddle.to_tensor([[setting.size, setting.size, 0, 0, setting.size, setting.size]], dtype=dtype)
        more["added_cond_kwargs"] = {
            "text_embeds": normal(setting.batch, pooled), "time_ids": ids.expand([setting.batch, 6]),
        }  # fmt: skip

    def run(steps: int) -> None:
        with paddle.no_grad():
            for latent, timestep in list(zip(latents, timesteps, strict=True))[:steps]:
                unet(latent, timestep, text, **more)

    return Workload(unet, run, plan.steps)


def _pipeline_workload(plan: Plan, setting: Setting) -> Workload:
    import paddle

    from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
    from ppdiffusers_tome.tools.generation.sampling import make_initial_noise

    pipe = load_pipeline(find_model(plan.model), dtype=plan.dtype)
    pipe.set_progress_bar_config(disable=True)
    seeds = range(plan.seed, plan.seed + setting.batch)
    noise = [make_initial_noise(pipe, setting.size, setting.size, seed) for seed in seeds]
    latents = paddle.concat(noise)

    def run(steps: int) -> None:
        paddle.seed(plan.seed)
        pipe(
            prompt=[PROMPT] * setting.batch, height=setting.size, width=setting.size, num_inference_steps=steps,
            guidance_scale=plan.guidance_scale, latents=latents.clone(),
        )  # fmt: skip

    return Workload(pipe, run, setting.batch)
