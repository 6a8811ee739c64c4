"""Loading pipelines that were found, on the device that Paddle runs on."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.console.output import log
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, no_text_to_image

DTYPES = ("float32", "float16", "bfloat16")

_CONTROLNET_PIPELINES = {
    "StableDiffusionPipeline": "StableDiffusionControlNetPipeline",
    "StableDiffusionXLPipeline": "StableDiffusionXLControlNetPipeline",
}


def load_pipeline(
    model: ModelSource, controlnet: ModelSource | None = None, *, dtype: str = "float32", any_kind: bool = False,
    class_labels: bool = False,
) -> Any:  # fmt: skip
    """Load a pipeline, with a ControlNet where one is given.

    Args:
        model, controlnet: from ``finding``.
        dtype: ``float32``, ``float16`` or ``bfloat16``; the latter two on a GPU only.
        any_kind: take pipelines too that cannot draw from a prompt.
        class_labels: take a DiTPipeline too.

    Returns:
        A ppdiffusers pipeline in evaluation mode.

    Warns where weights in a folder are pickles.

    Raises:
        UserError: it cannot be fetched or its files cannot be read.
    """
    import ppdiffusers

    log(f"loading {' and '.join(source.name for source in (model, controlnet) if source)} ...")
    if model.vae is not None:
        vae = _load(ppdiffusers.AutoencoderKL, "--model", replace(model, folder=model.vae), dtype)
        pipe = _load(ppdiffusers.DiffusionPipeline, "--model", model, dtype, vae=vae)
    elif controlnet is None:
        pipe = _load(ppdiffusers.DiffusionPipeline, "--model", model, dtype)
    else:
        loaded = _load(ppdiffusers.ControlNetModel, "--controlnet", controlnet, dtype)
        pipe = _load(_controlnet_pipeline(model), "--model", model, dtype, controlnet=loaded)
    labelled = class_labels and isinstance(pipe, ppdiffusers.DiTPipeline)
    lacks = getattr(pipe, "unet", None) is None or getattr(pipe, "vae", None) is None
    if lacks and not any_kind and not labelled:
        raise no_text_to_image(model.name, type(pipe).__name__)
    return pipe


def drop_controlnet(pipe: Any) -> Any:
    """A pipeline that draws from prompts alone, of the very parts of one that ``load_pipeline`` made with a ControlNet.

    It has a progress bar of its own. Its denoiser is shared, so ToMe is applied to both or neither.
    """
    import ppdiffusers

    plain = next(name for name, other in _CONTROLNET_PIPELINES.items() if other == type(pipe).__name__)
    cls = getattr(ppdiffusers, plain)
    parts = {name: part for name, part in pipe.components.items() if name != "controlnet"}
    checks = {} if "safety_checker" not in parts else {"requires_safety_checker": parts["safety_checker"] is not None}
    return cls(**parts, **checks)


def load_unet(model: ModelSource, *, dtype: str = "float32") -> Any:
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
    import ppdiffusers

    unet = _load(ppdiffusers.UNet2DConditionModel, "--model", model, dtype, subfolder="unet")
    unet.eval()
    return unet


def _load(cls: Any, option: str, source: ModelSource, dtype: str, **keywords: Any) -> Any:
    """``cls.from_pretrained`` of what was given as an option."""
    import paddle

    if source.pickles:
        warnings.warn(
            f"{source.pickles[0]} is a pickle, which can run any code when it is loaded; load only models that you "
            "trust, or have them as safetensors",
            stacklevel=3,
        )
    name, arguments = source.arguments
    try:
        return cls.from_pretrained(name, **arguments, **keywords, paddle_dtype=getattr(paddle, dtype))
    except Exception as error:  # whatever ppdiffusers, paddlenlp, safetensors or the network came up with
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "check that its files are complete" if Path(name).is_dir() else "check the name and the network"
        raise UserError(f"{option} {name} could not be loaded; {remedy} ({type(error).__name__}: {reason})") from error


def _controlnet_pipeline(model: ModelSource) -> Any:
    """The pipeline class that adds a ControlNet to the one a model was saved as."""
    import ppdiffusers

    name, _ = model.arguments
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
