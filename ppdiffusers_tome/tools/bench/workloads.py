"""The timed work: a denoiser over a short schedule, or a pipeline call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.random_models import RANDOM_TRANSFORMERS, RANDOM_UNETS, random_model
from ppdiffusers_tome.tools.bench.variants import find_denoiser
from ppdiffusers_tome.tools.generation.device import check_device
from ppdiffusers_tome.tools.generation.model_sources import find_model

UNET, PIPELINE = "unet", "pipeline"
PLAIN, CHUNKED, XFORMERS, FLASH = ATTENTIONS = ("plain", "chunked", "xformers", "flash")
_PADDLE_NAMES = {XFORMERS: "cutlass", FLASH: "flash"}
_TEXT_TOKENS, _SD3_TEXT_TOKENS = 77, 77 + 77
_PROMPT = "a photo of a cat"


@dataclass(frozen=True)
class Case:
    """One model at one size: what one process measures.

    Attributes:
        what: ``unet`` (any denoiser) or ``pipeline``.
        model: a pipeline's folder or name, or a model with random weights.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        attention: of ``ATTENTIONS``.
        size: height and width of the image in pixels.
        batch: rows of the denoiser's batch, or images of one pipeline call.
        steps: denoising steps of one timed run.
        guidance_scale: of a pipeline; None for a denoiser.
    """

    what: str
    model: str
    dtype: str
    attention: str
    size: int
    batch: int
    steps: int
    guidance_scale: float | None = None

    @property
    def name(self) -> str:
        return f"{self.size}x{self.size}, batch {self.batch}, {self.attention} attention"

    def key(self, kind: str, name: int | str) -> list[Any]:
        """Return the ledger's key of a finding of a round or variant.

        The result of a ``round`` is the seconds by variant. ``too large`` exists for a variant that ran out of memory
        while it was timed. The result of ``memory`` is a variant's peaks, or None if it ran out of memory.
        """
        return [asdict(self), kind, name]


@dataclass(frozen=True)
class Workload:
    """A case, loaded.

    Attributes:
        model_or_pipe: the model to which variants are applied.
        run: run it with so many denoising steps.
        units: denoiser calls of a whole run, or images; results are the seconds of one.
    """

    model_or_pipe: Any
    run: Callable[[int], None]
    units: int


def load_workload(case: Case) -> Workload:
    """Load the model and the inputs of a case.

    Raises:
        UserError: the model cannot be loaded, or this device cannot run it so.
    """
    check_device(case.dtype, xformers=False)
    if case.what == PIPELINE:
        workload = _load_pipeline(case)
    else:
        workload = _load_sd3(case) if case.model in RANDOM_TRANSFORMERS else _load_unet(case)
    _set_attention(find_denoiser(workload.model_or_pipe), case)
    return workload


def _set_attention(denoiser: Any, case: Case) -> None:
    import paddle

    from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention

    if case.attention in _PADDLE_NAMES and not paddle.get_device().startswith("gpu"):
        raise UserError(f"--attention {case.attention} needs a GPU with paddlepaddle-gpu; use plain or chunked here")
    if case.model in RANDOM_TRANSFORMERS:
        return  # SD3 computes attention in its own way, which is flash attention in half precision
    denoiser.set_default_attn_processor()
    if case.attention == CHUNKED:
        enable_chunked_attention(denoiser)
    elif case.attention in _PADDLE_NAMES:
        denoiser.enable_xformers_memory_efficient_attention(attention_op=_PADDLE_NAMES[case.attention])


def _normal_tensors(case: Case) -> Callable[..., Any]:
    """Return a function that makes random tensors ``[batch, *shape]``, the same in every process."""
    import numpy as np
    import paddle

    rng = np.random.default_rng(0)
    dtype = getattr(paddle, case.dtype)
    return lambda *shape: paddle.to_tensor(rng.standard_normal((case.batch, *shape), np.float32)).cast(dtype)


def _timestep(case: Case, step: int) -> int:
    return 999 - 1000 * step // case.steps


def _load_unet(case: Case) -> Workload:
    import paddle

    from ppdiffusers_tome.tools.generation.model_loader import load_unet

    if case.model in RANDOM_UNETS:
        unet = random_model(case.model, dtype=case.dtype)
    else:
        unet = load_unet(find_model(case.model), dtype=case.dtype)
    side, config, normal = case.size // 8, unet.config, _normal_tensors(case)
    latents = [normal(config.in_channels, side, side) for _ in range(case.steps)]
    text = normal(_TEXT_TOKENS, config.cross_attention_dim)
    conditions: dict[str, Any] = {}
    if config.get("addition_embed_type") == "text_time":  # SDXL
        pooled = normal(config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim)
        ids = paddle.to_tensor([[case.size, case.size, 0, 0, case.size, case.size]], dtype=text.dtype)
        conditions["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": ids.expand([case.batch, 6])}

    def run(steps: int) -> None:
        with paddle.no_grad():
            for step, latent in enumerate(latents[:steps]):
                unet(latent, paddle.to_tensor(_timestep(case, step), dtype="int64"), text, **conditions)

    return Workload(unet, run, case.steps)


def _load_sd3(case: Case) -> Workload:
    import paddle

    config, normal, side = RANDOM_TRANSFORMERS[case.model], _normal_tensors(case), case.size // 8
    model = random_model(case.model, dtype=case.dtype)
    latents = [normal(config["in_channels"], side, side) for _ in range(case.steps)]
    text = normal(_SD3_TEXT_TOKENS, config["joint_attention_dim"])
    pooled = normal(config["pooled_projection_dim"])

    def run(steps: int) -> None:
        with paddle.no_grad():
            for step, latent in enumerate(latents[:steps]):
                timesteps = paddle.full([case.batch], _timestep(case, step), dtype="int64")
                model(hidden_states=latent, encoder_hidden_states=text, pooled_projections=pooled, timestep=timesteps)

    return Workload(model, run, case.steps)


def _load_pipeline(case: Case) -> Workload:
    import paddle

    from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
    from ppdiffusers_tome.tools.generation.sampling import make_initial_noise

    pipe = load_pipeline(find_model(case.model), dtype=case.dtype)
    pipe.set_progress_bar_config(disable=True)
    noise = [make_initial_noise(pipe, case.size, case.size, number) for number in range(case.batch)]
    latents = paddle.concat(noise)

    def run(steps: int) -> None:
        paddle.seed(0)
        pipe(
            prompt=[_PROMPT] * case.batch, height=case.size, width=case.size, num_inference_steps=steps,
            guidance_scale=case.guidance_scale, latents=latents.clone(),
        )  # fmt: skip

    return Workload(pipe, run, case.batch)
