"""Loads pipelines that ``model_sources`` found."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.console.output import log
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, make_unsupported_error

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
        model, controlnet: from ``model_sources``.
        dtype: one of ``DTYPES``; all but float32 on a GPU only.
        any_kind: accept pipelines that cannot generate from a prompt, too.
        class_labels: accept a DiTPipeline, too.

    Returns:
        A ppdiffusers pipeline in evaluation mode. Weights that are pickles give a warning.

    Raises:
        UserError: it cannot be downloaded, or its files cannot be loaded.
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
        pipe = _load(_choose_controlnet_pipeline(model), "--model", model, dtype, controlnet=loaded)
    has_labels = class_labels and isinstance(pipe, ppdiffusers.DiTPipeline)
    is_incomplete = getattr(pipe, "unet", None) is None or getattr(pipe, "vae", None) is None
    if is_incomplete and not any_kind and not has_labels:
        raise make_unsupported_error(model.name, type(pipe).__name__)
    return pipe


def drop_controlnet(pipe: Any) -> Any:
    """Make a pipeline without the ControlNet from one with it.

    All other parts are shared, so ToMe is applied to both or neither; the progress bar is not.
    """
    import ppdiffusers

    name = next(plain for plain, other in _CONTROLNET_PIPELINES.items() if other == type(pipe).__name__)
    parts = {name: part for name, part in pipe.components.items() if name != "controlnet"}
    checks = {} if "safety_checker" not in parts else {"requires_safety_checker": parts["safety_checker"] is not None}
    return getattr(ppdiffusers, name)(**parts, **checks)


def load_unet(model: ModelSource, *, dtype: str = "float32") -> Any:
    """Load the UNet of a pipeline alone; see ``load_pipeline``."""
    import ppdiffusers

    unet = _load(ppdiffusers.UNet2DConditionModel, "--model", model, dtype, subfolder="unet")
    unet.eval()
    return unet


def _load(cls: Any, option: str, source: ModelSource, dtype: str, **keywords: Any) -> Any:
    import paddle

    if source.pickles:
        warnings.warn(
            f"{source.pickles[0]} is a pickle, which can run any code when it is loaded; load only models that you "
            "trust, or have them as safetensors",
            stacklevel=3,
        )
    name, arguments = source.arguments
    try:
        with _hide_variants(source) as folder:
            return cls.from_pretrained(folder or name, **arguments, **keywords, paddle_dtype=getattr(paddle, dtype))
    except Exception as error:  # of ppdiffusers, paddlenlp, safetensors or the network
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "check that its files are complete" if Path(name).is_dir() else "check the name and the network"
        raise UserError(f"{option} {name} could not be loaded; {remedy} ({type(error).__name__}: {reason})") from error


@contextmanager
def _hide_variants(source: ModelSource) -> Iterator[str | None]:
    """Link the files of a folder under names without a variant, as paddlenlp loads no other; None without variants."""
    if source.folder is None or not source.variants:
        yield None
        return
    with TemporaryDirectory() as folder:
        for path in filter(Path.is_file, source.folder.rglob("*")):
            relative = path.relative_to(source.folder)
            variant = source.variants.get(relative.parts[0])
            link = folder / relative.with_name(path.name.replace(f".{variant}.", "."))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        yield folder


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
