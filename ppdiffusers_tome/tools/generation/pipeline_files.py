"""Pipelines loaded from the files that ``model_sources`` found."""

import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.console.output import log, warn
from ppdiffusers_tome.tools.generation.class_labels import DIT_PIPELINE
from ppdiffusers_tome.tools.generation.model_files import explain_weights, find_code, is_torch, list_pickles
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, describe_small_models
from ppdiffusers_tome.tools.measure.memory import explain_shortage

_PICKLES = "weights are pickles, which can run any code, so load them only from whom you trust"
DTYPES = ("float32", "float16", "bfloat16")

_CONTROLNET_PIPELINES = {
    "StableDiffusionPipeline": "StableDiffusionControlNetPipeline",
    "StableDiffusionXLPipeline": "StableDiffusionXLControlNetPipeline",
}
# What a call must take: noise of its own for each image, and a function that is called after every step.
_ARGUMENTS = {"prompt", "height", "width", "latents", "callback_on_step_end"}


def load_pipeline(model: ModelSource, controlnet: ModelSource | None = None, *, dtype: str = DTYPES[0]) -> Any:
    """Load a pipeline in evaluation mode.

    Args:
        model, controlnet: from ``model_sources``.
        dtype: one of ``DTYPES``; all but float32 on a GPU only.
    """
    import ppdiffusers

    log(f"loading {' and '.join(source.name for source in (model, controlnet) if source)} ...")
    index = _read_index(model)
    kind = str(index.get("_class_name"))
    # A part is a library and a class of it; without either, the pipeline lacks it.
    parts = {name: value[-1] for name, value in index.items() if isinstance(value, list | tuple) and any(value)}
    _require_usable(model, kind, parts, guided=controlnet is not None)
    loaded = _load_torch_parts(model, parts, dtype)
    if controlnet is None:
        return _load(ppdiffusers.DiffusionPipeline, "--model", model, dtype, **loaded)
    loaded["controlnet"] = _load(ppdiffusers.ControlNetModel, "--controlnet", controlnet, dtype)
    pipe = _load(getattr(ppdiffusers, _CONTROLNET_PIPELINES.get(kind, kind)), "--model", model, dtype, **loaded)
    _check_fit(pipe, model, controlnet)
    return pipe


def _read_index(model: ModelSource) -> dict[str, Any]:
    """Read a pipeline's model_index.json; refuse one that names Python code."""
    import ppdiffusers

    with _explain_faults("--model", model):
        # Of a folder not with ppdiffusers, which cannot read an index that names a pipeline's own file.
        index = (
            ppdiffusers.DiffusionPipeline.load_config(model.name) if model.folder is None
            else json.loads((model.folder / "model_index.json").read_bytes())
        )  # fmt: skip
        if not isinstance(index, dict):
            raise ValueError("model_index.json holds no object")
    code = find_code(index, model.folder, ppdiffusers.pipelines)
    if code is not None:
        raise UserError(
            f"--model {model.name}: its model_index.json names Python code, {code}, which would run as you; if you "
            "trust it, load the model in Python and call apply_tome"
        )
    return index


def _require_usable(model: ModelSource, kind: str, parts: Collection[str], *, guided: bool) -> None:
    """Refuse a kind of pipeline that commands cannot use, or not with a ControlNet."""
    if kind != DIT_PIPELINE and not ({"unet", "vae"} <= {*parts} and _generates_from_prompt(kind, guided=guided)):
        remedy = "give a text-to-image pipeline such as Stable Diffusion"
        if not guided and kind in _CONTROLNET_PIPELINES.values():
            remedy = "name its ControlNet by --controlnet"
        raise UserError(f"--model {model.name} is a {kind}, which this command cannot use; {remedy}")
    if guided and kind not in (*_CONTROLNET_PIPELINES, *_CONTROLNET_PIPELINES.values()):
        raise UserError(
            f"--model {model.name} is a {kind}; a ControlNet can be added to {' and '.join(_CONTROLNET_PIPELINES)}"
        )


def _load_torch_parts(model: ModelSource, parts: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Load the parts with weights of PyTorch in a folder whose others have Paddle's."""
    import ppdiffusers

    loaded: dict[str, Any] = {}
    if model.folder is not None and not is_torch(model.folder):
        for name, class_name in parts.items():
            folder, part_class = model.folder / name, getattr(ppdiffusers, str(class_name), None)
            if is_torch(folder) and part_class is not None:
                part = replace(model, name=f"{model.name}/{name}", folder=folder)
                loaded[name] = _load(part_class, "--model", part, dtype)
    return loaded


def drop_controlnet(pipe: Any) -> Any:
    """Make a pipeline without the ControlNet from one with it.

    All other parts are shared, so ToMe is applied to both or neither; the progress bar is not.
    """
    import ppdiffusers

    kind = next(plain for plain, guided in _CONTROLNET_PIPELINES.items() if guided == type(pipe).__name__)
    parts = {name: part for name, part in pipe.components.items() if name != "controlnet"}
    own: dict[str, Any] = {}
    if "force_zeros_for_empty_prompt" in pipe.config:
        own["force_zeros_for_empty_prompt"] = pipe.config["force_zeros_for_empty_prompt"]
    if "safety_checker" in parts:
        own["requires_safety_checker"] = parts["safety_checker"] is not None
    return getattr(ppdiffusers, kind)(**parts, **own)


def _generates_from_prompt(kind: str, *, guided: bool) -> bool:
    """Return whether pipelines need a prompt, and maybe edges, alone."""
    import ppdiffusers

    cls = getattr(ppdiffusers, kind, None)
    if cls is None:  # unknown, which loading reports
        return True
    takes = inspect.signature(cls.__call__).parameters.keys()
    return takes >= _ARGUMENTS and (guided or "image" not in takes)


def _check_fit(pipe: Any, model: ModelSource, controlnet: ModelSource) -> None:
    """Check that a ControlNet was made for a UNet of this shape."""
    for name in ("block_out_channels", "cross_attention_dim"):
        given, needed = pipe.controlnet.config[name], pipe.unet.config[name]
        if given != needed:
            raise UserError(
                f"--controlnet {controlnet.name} does not fit --model {model.name}: its {name} is {given}, and that of "
                f"the model {needed}; name one that was made for this model"
            )


def _load(cls: Any, option: str, source: ModelSource, dtype: str, **keywords: Any) -> Any:
    import paddle

    if source.folder is not None:  # of a hub's, FROM_DIFFUSERS decides
        keywords["from_diffusers"] = is_torch(source.folder)
    if source.folder is None:
        warn(f"{option} {source.name}: {_PICKLES} where its files are no safetensors")
    elif pickles := list_pickles(source.folder):
        warn(f"{option} {source.name}: {_PICKLES}: {', '.join(pickles)}")
    with _explain_faults(option, source):
        name = str(source.folder or source.name)
        return cls.from_pretrained(name, **keywords, paddle_dtype=getattr(paddle, dtype))


@contextmanager
def _explain_faults(option: str, source: ModelSource) -> Iterator[None]:
    """Turn faults of loading into a ``UserError`` with the remedy."""
    try:
        yield
    except Exception as error:  # of ppdiffusers, paddlenlp, safetensors or the network
        if explain_shortage(error):  # of memory, which has a remedy of its own
            raise
        reason = " ".join(str(error).split())[:600] or type(error).__name__
        small = describe_small_models("model_index.json" if option == "--model" else "config.json")
        remedy = f"check the name and the network, or give {small}; for weights of PyTorch set FROM_DIFFUSERS=1"
        if source.folder is not None:
            remedy = explain_weights(source.folder) or "check that its files are complete"
        raise UserError(
            f"{option} {source.name} could not be loaded; {remedy} ({type(error).__name__}: {reason})"
        ) from error
