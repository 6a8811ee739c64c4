"""Loads pipelines that ``model_sources`` found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.console.output import log
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, make_unsupported_error
from ppdiffusers_tome.tools.generation.weights import explain_weights

DTYPES = ("float32", "float16", "bfloat16")

_CONTROLNET_PIPELINES = {
    "StableDiffusionPipeline": "StableDiffusionControlNetPipeline",
    "StableDiffusionXLPipeline": "StableDiffusionXLControlNetPipeline",
}


def load_pipeline(
    model: ModelSource, controlnet: ModelSource | None = None, *, dtype: str = DTYPES[0], any_kind: bool = False,
    class_labels: bool = False,
) -> Any:  # fmt: skip
    """Load a pipeline in evaluation mode.

    Args:
        model, controlnet: from ``model_sources``.
        dtype: one of ``DTYPES``; all but float32 on a GPU only.
        any_kind: accept pipelines that cannot generate from a prompt, too.
        class_labels: accept a DiTPipeline, too.
    """
    import ppdiffusers

    log(f"loading {' and '.join(source.name for source in (model, controlnet) if source)} ...")
    cls, parts = ppdiffusers.DiffusionPipeline, {}
    if model.vae is not None:
        parts["vae"] = _load(ppdiffusers.AutoencoderKL, "--model", replace(model, folder=model.vae), dtype)
    if controlnet is not None:
        parts["controlnet"] = _load(ppdiffusers.ControlNetModel, "--controlnet", controlnet, dtype)
        cls = _choose_controlnet_pipeline(model)
    pipe = _load(cls, "--model", model, dtype, **parts)
    is_complete = all(getattr(pipe, part, None) is not None for part in ("unet", "vae"))
    if not (is_complete or any_kind or (class_labels and isinstance(pipe, ppdiffusers.DiTPipeline))):
        raise make_unsupported_error(model.name, type(pipe).__name__)
    return pipe


def set_attention(pipe: Any, *, xformers: bool, chunked: bool) -> None:
    """Choose how a pipeline computes attention."""
    from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention

    if xformers:
        pipe.enable_xformers_memory_efficient_attention()
    if chunked:
        enable_chunked_attention(pipe)


def drop_controlnet(pipe: Any) -> Any:
    """Make a pipeline without the ControlNet from one with it.

    All other parts are shared, so ToMe is applied to both or neither; the progress bar is not.
    """
    import ppdiffusers

    name = next(plain for plain, other in _CONTROLNET_PIPELINES.items() if other == type(pipe).__name__)
    parts = {name: part for name, part in pipe.components.items() if name != "controlnet"}
    checks = {} if "safety_checker" not in parts else {"requires_safety_checker": parts["safety_checker"] is not None}
    return getattr(ppdiffusers, name)(**parts, **checks)


def _load(cls: Any, option: str, source: ModelSource, dtype: str, **keywords: Any) -> Any:
    import paddle

    name, arguments = source.arguments
    try:
        return cls.from_pretrained(name, **arguments, **keywords, paddle_dtype=getattr(paddle, dtype))
    except Exception as error:  # of ppdiffusers, paddlenlp, safetensors or the network
        reason = " ".join(str(error).split())[:600] or type(error).__name__
        remedy = "check the name and the network"
        if source.folder is not None:
            remedy = explain_weights(source.folder) or "check that its files are complete"
        raise UserError(f"{option} {name} could not be loaded; {remedy} ({type(error).__name__}: {reason})") from error


def _choose_controlnet_pipeline(model: ModelSource) -> Any:
    """Choose the class that adds a ControlNet to a model's pipeline."""
    import ppdiffusers

    name, _ = model.arguments
    try:
        saved_as = ppdiffusers.DiffusionPipeline.load_config(name)["_class_name"]
    except Exception:
        saved_as = "StableDiffusionPipeline"  # loading reports the fault
    if saved_as not in (*_CONTROLNET_PIPELINES, *_CONTROLNET_PIPELINES.values()):
        raise UserError(
            f"--model {name} is a {saved_as}; a ControlNet can be added to {' and '.join(_CONTROLNET_PIPELINES)}"
        )
    return getattr(ppdiffusers, _CONTROLNET_PIPELINES.get(saved_as, saved_as))
