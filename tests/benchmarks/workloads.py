"""The timed work: a denoiser over a short schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.random_models import RANDOM_SD3, random_model
from ppdiffusers_tome.errors import UserError

PLAIN, CPU, XFORMERS, FLASH = ATTENTIONS = ("plain", "cpu", "xformers", "flash")
_PADDLE_NAMES = {XFORMERS: "cutlass", FLASH: "flash"}
_TEXT_TOKENS, _SD3_TEXT_TOKENS = 77, 77 + 77


@dataclass(frozen=True)
class Case:
    """One model at one size.

    Attributes:
        model: a denoiser with random weights.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        attention: of ``ATTENTIONS``.
        size: height and width of the image in pixels.
        batch: rows of the denoiser's batch.
        steps: calls of one timed run.
    """

    model: str
    dtype: str
    attention: str
    size: int
    batch: int
    steps: int

    @property
    def name(self) -> str:
        return f"{self.model}, {self.dtype}, {self.size}x{self.size}, batch {self.batch}, {self.attention} attention"

    def key(self, kind: str, name: int | str) -> list[Any]:
        """Return the ledger's key of a result.

        The result of a ``round`` is the seconds by label. ``too large`` exists for a label that ran out of memory.
        """
        return [asdict(self), kind, name]


def load_workload(case: Case) -> tuple[Any, Callable[[int], None]]:
    """Return a case's model, and a function that calls it for so many steps.

    Raises:
        UserError: this device cannot run it so.
    """
    import paddle

    from benchmarks.onnx_kernels import use_kernels

    if case.dtype != "float32" and paddle.get_device() == "cpu":
        raise UserError(f"--dtype {case.dtype} needs a GPU with paddlepaddle-gpu")
    if case.attention in _PADDLE_NAMES and not paddle.get_device().startswith("gpu"):
        raise UserError(f"--attention {case.attention} needs a GPU with paddlepaddle-gpu; use plain or cpu here")
    denoiser, run = _load_denoiser(case)
    if case.model != RANDOM_SD3:  # which computes attention in its own way: in half precision, flash attention
        denoiser.set_default_attn_processor()
        if case.attention == CPU:
            use_kernels(denoiser)
        elif case.attention in _PADDLE_NAMES:
            denoiser.enable_xformers_memory_efficient_attention(attention_op=_PADDLE_NAMES[case.attention])
    return denoiser, run


def _load_denoiser(case: Case) -> tuple[Any, Callable[[int], None]]:
    import numpy as np
    import paddle

    model = random_model(case.model, dtype=case.dtype)
    rng = np.random.default_rng(0)  # the same inputs in every run

    def make_normal(*shape: int) -> paddle.Tensor:
        values = rng.standard_normal((case.batch, *shape), np.float32)
        return paddle.to_tensor(values).cast(getattr(paddle, case.dtype))

    latents = [make_normal(model.config.in_channels, case.size // 8, case.size // 8) for _ in range(case.steps)]
    conditions = _make_conditions(case, model.config, make_normal)

    def run(steps: int) -> None:
        with paddle.no_grad():
            for step, latent in enumerate(latents[:steps]):
                timestep = paddle.to_tensor(999 - 1000 * step // case.steps, dtype="int64")
                if case.model == RANDOM_SD3:
                    model(hidden_states=latent, timestep=timestep.expand([case.batch]), **conditions)
                else:
                    model(latent, timestep, **conditions)

    return model, run


def _make_conditions(case: Case, config: Any, make_normal: Callable[..., Any]) -> dict[str, Any]:
    """Make the text's embeddings, as the denoiser takes them."""
    import paddle

    if case.model == RANDOM_SD3:
        text = make_normal(_SD3_TEXT_TOKENS, config.joint_attention_dim)
        return {"encoder_hidden_states": text, "pooled_projections": make_normal(config.pooled_projection_dim)}
    conditions: dict[str, Any] = {"encoder_hidden_states": make_normal(_TEXT_TOKENS, config.cross_attention_dim)}
    if config.get("addition_embed_type") == "text_time":  # SDXL
        pooled = make_normal(config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim)
        ids = paddle.to_tensor([[case.size, case.size, 0, 0, case.size, case.size]], dtype=pooled.dtype)
        conditions["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": ids.expand([case.batch, 6])}
    return conditions
