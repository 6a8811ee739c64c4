"""Loading pipelines that were found, on the device that Paddle runs on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.drawing.finding import Source

DTYPES = ("float32", "float16", "bfloat16")

_CONTROLNET_PIPELINES = {
    "StableDiffusionPipeline": "StableDiffusionControlNetPipeline",
    "StableDiffusionXLPipeline": "StableDiffusionXLControlNetPipeline",
}


def load_pipeline(
    model: Source, controlnet: Source | None = None, *, dtype: str = "float32", any_kind: bool = False
) -> Any:
    """Load a pipeline, with a ControlNet where one is given.

    Args:
        model, controlnet: from ``finding``.
        dtype: ``float32``, ``float16`` or ``bfloat16``; the latter two on a GPU only.
        any_kind: take pipelines too that cannot draw from a prompt.

    Returns:
        A ppdiffusers pipeline in evaluation mode.

    Warns where weights in a folder are pickles.

    Raises:
        UserError: it cannot be fetched or its files cannot be read.
    """
    import paddle
    import ppdiffusers

    _warn_of_pickles(model, controlnet)
    name, keywords = model.arguments
    keywords["paddle_dtype"] = getattr(paddle, dtype)
    pipeline_class = ppdiffusers.DiffusionPipeline
    if controlnet is not None:
        controlnet_name, controlnet_keywords = controlnet.arguments
        keywords["controlnet"] = _loaded(
            ppdiffusers.ControlNetModel, "--controlnet", controlnet_name,
            {**controlnet_keywords, "paddle_dtype": keywords["paddle_dtype"]},
        )  # fmt: skip
        pipeline_class = _controlnet_pipeline(name)
    pipe = _loaded(pipeline_class, "--model", name, keywords)
    if any_kind:
        return pipe
    if getattr(pipe, "unet", None) is None or getattr(pipe, "vae", None) is None:
        raise UserError(
            f"--model {model.name} is a {type(pipe).__name__} without a unet and a vae; give a text-to-image pipeline "
            "such as Stable Diffusion"
        )
    return pipe


def load_unet(model: Source, *, dtype: str = "float32") -> Any:
    """Load the UNet of a pipeline alone, so that the rest takes no memory.

    Args:
        model: from ``finding``.
        dtype: ``float32``, ``float16`` or ``bfloat16``; the latter two on a GPU only.

    Returns:
        A ``UNet2DConditionModel`` in evaluation mode.

    Warns where weights in the folder are pickles.

    Raises:
        UserError: it cannot be fetched or its files cannot be read.
    """
    import paddle
    import ppdiffusers

    _warn_of_pickles(model)
    name, keywords = model.arguments
    keywords |= {"subfolder": "unet", "paddle_dtype": getattr(paddle, dtype)}
    unet = _loaded(ppdiffusers.UNet2DConditionModel, "--model", name, keywords)
    unet.eval()
    return unet


def _warn_of_pickles(*sources: Source | None) -> None:
    for source in sources:
        if source is not None and source.pickles:
            warnings.warn(
                f"{source.pickles[0]} is a pickle, which can run any code when it is loaded; load only models that you "
                "trust, or have them as safetensors",
                stacklevel=3,
            )


def _loaded(cls: Any, option: str, name: str, keywords: dict[str, Any]) -> Any:
    try:
        return cls.from_pretrained(name, **keywords)
    except Exception as error:  # whatever ppdiffusers, paddlenlp, safetensors or the network came up with
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "check that its files are whole" if Path(name).is_dir() else "check the name and the network"
        raise UserError(f"{option} {name} could not be loaded; {remedy} ({type(error).__name__}: {reason})") from error


def _controlnet_pipeline(name: str) -> Any:
    """The pipeline class that adds a ControlNet to the one a model was saved as."""
    import ppdiffusers

    try:
        saved_as = ppdiffusers.DiffusionPipeline.load_config(name)["_class_name"]
    except Exception:
        saved_as = "StableDiffusionPipeline"  # loading will say what is wrong
    if saved_as in _CONTROLNET_PIPELINES.values():
        return getattr(ppdiffusers, saved_as)
    if saved_as not in _CONTROLNET_PIPELINES:
        raise UserError(
            f"--model {name} is a {saved_as}; a ControlNet can be added to {' and '.join(_CONTROLNET_PIPELINES)}"
        )
    return getattr(ppdiffusers, _CONTROLNET_PIPELINES[saved_as])
