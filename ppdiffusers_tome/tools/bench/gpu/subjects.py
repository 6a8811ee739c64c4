"""What ``bench gpu`` measures: real shapes with random weights, a process a setting. Importing this knows no Paddle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.contenders import NONE, PRESETS
from ppdiffusers_tome.tools.bench.gpu.families import FAMILIES, SD3_TEXT_TOKENS
from ppdiffusers_tome.tools.bench.plan import Plan, Setting
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS, random_model
from ppdiffusers_tome.tools.bench.task import Task, carry_out
from ppdiffusers_tome.tools.bench.workload import Workload, load_workload
from ppdiffusers_tome.tools.measure.out_of_memory import is_out_of_memory

# What transformer/config.json of stabilityai/stable-diffusion-3-medium-diffusers says.
_SD3 = {
    "sample_size": 128, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 24,
    "attention_head_dim": 64, "num_attention_heads": 24, "joint_attention_dim": 4096, "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048, "pos_embed_max_size": 192,
}  # fmt: skip
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "sd3-random": _SD3,
    "sd3-tiny-random": {
        **_SD3, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 32,
        "caption_projection_dim": 16, "pooled_projection_dim": 32,
    },
}  # fmt: skip
# Of every family that this ppdiffusers has a model of; and tiny ones of the same kinds, of which a CPU runs the UNets.
MODELS = {"sd15": "sd15-random", "sdxl": "sdxl-random", "sd3": "sd3-random"}
TINY_MODELS = {"sd15": "sd15-tiny-random", "sdxl": "sdxl-tiny-random"}
FLASH = "flash"


class CannotRunError(UserError):
    """A model does not run in one kind of attention or precision; others may."""


def plan_of(
    family: str, model: str, dtype: str, attention: str, sizes: tuple[int, ...], steps: int, repeats: int
) -> Plan:
    """The unmerged denoiser and every preset, at every size in one kind of attention."""
    return Plan(
        what="unet", model=model, dtype=dtype, steps=steps, contenders=(NONE, *PRESETS.values()), ratios=(),
        max_downsample=None, seed=0, guidance_scale=None, sizes=sizes, batches=(FAMILIES[family].batch,),
        attentions=(attention,), repeats=repeats, memory=False,
    )  # fmt: skip


def gpu_name() -> Iterator[str | None]:
    """The name of the GPU that Paddle runs on, once; None where it runs on a CPU."""
    import paddle

    yield paddle.device.cuda.get_device_name() if paddle.get_device().startswith("gpu") else None


def on_gpu(task: Task) -> Iterator[dict[str, Any]]:
    """Carry out a task by the GPU's own clock, where Paddle tells it."""
    from ppdiffusers_tome.tools.bench.gpu.clock import clock_here

    clock, meaning = clock_here()
    for result in carry_out(task, load, clock):
        if "on" in result:
            name = next(gpu_name())
            result["on"] |= {"clock": meaning} if name is None else {"gpu": name, "clock": meaning}
        yield result


def on_cpu(task: Task) -> Iterator[dict[str, Any]]:
    """The same on the CPU, whatever there is."""
    import paddle

    paddle.set_device("cpu")
    yield from on_gpu(task)


def load(plan: Plan, setting: Setting) -> Workload:
    """Load a UNet of ``RANDOM_UNETS``, as ``bench unet`` does, or a transformer of ``TRANSFORMERS``, and try it once.

    Raises:
        CannotRunError: this device, or this version of Paddle, cannot run it so. Too little memory is no reason, as
            with merging it may do.
    """
    try:
        loaded = (load_workload if plan.model in RANDOM_UNETS else _load_transformer)(plan, setting)
        try:
            loaded.run(1)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    except UserError as error:
        raise CannotRunError(str(error)) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise CannotRunError(f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}") from error
    return loaded


def _load_transformer(plan: Plan, setting: Setting) -> Workload:
    import numpy as np
    import paddle
    import ppdiffusers

    if setting.attention != FLASH:
        raise UserError(f"SD3 computes attention in its own way, which is {FLASH} in half precision")
    config, dtype = TRANSFORMERS[plan.model], getattr(paddle, plan.dtype)
    model = random_model(ppdiffusers.SD3Transformer2DModel, config, dtype=plan.dtype)
    rng, side = np.random.default_rng(plan.seed), setting.size // 8

    def normal(*shape: int) -> Any:
        return paddle.to_tensor(rng.standard_normal((setting.batch, *shape), np.float32)).cast(dtype)

    latents = [normal(config["in_channels"], side, side) for _ in range(plan.steps)]
    text = normal(SD3_TEXT_TOKENS, config["joint_attention_dim"])
    pooled = normal(config["pooled_projection_dim"])

    def run(steps: int) -> None:
        with paddle.no_grad():
            for step, latent in enumerate(latents[:steps]):
                timesteps = paddle.full([setting.batch], 999 - 1000 * step // plan.steps, dtype="int64")
                model(hidden_states=latent, encoder_hidden_states=text, pooled_projections=pooled, timestep=timesteps)

    return Workload(model, run, plan.steps)
