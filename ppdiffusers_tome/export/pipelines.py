"""Pipelines as static programs that ppdiffusers' deploy pipelines load, merging included.

The files are those of ppdiffusers' ``deploy/*/export_model.py``: ``model_index.json``, ``tokenizer``, ``scheduler``,
and a program in each of ``text_encoder``, ``unet`` (with the ControlNet, if there is one), ``vae_encoder`` and
``vae_decoder``. Two more describe them: ``tome.json`` holds the settings, for ``ToMeConfig.load``, unless denoisers
differ; ``export.json`` has those of each, the sizes and the checks.

Height and width are fixed, as they decide how many tokens merge; the batch may be dynamic.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.export.folder import (
    PROGRAM,
    PROGRAMS,
    SETTINGS,
    TOLERANCE,
    publish,
    require_exportable,
    require_folder,
)
from ppdiffusers_tome.export.loading import load_exported, load_program
from ppdiffusers_tome.export.programs import (
    LATENT_CHANNELS,
    VAE_SCALE_FACTOR,
    Component,
    TextEncoder,
    VaeDecoder,
    VaeEncoder,
    build_denoiser_component,
)
from ppdiffusers_tome.patching.apply import get_tome
from ppdiffusers_tome.settings.bounds import Bounds
from ppdiffusers_tome.settings.config import ToMeConfig

__all__ = ["export_pipeline", "load_exported"]
_SIDE = Bounds(Integral, "a whole number, a multiple of 8, such as 512", among=range(VAE_SCALE_FACTOR, 2**31, 8))
_ROWS = Bounds(Integral, "a whole number, 1 or more (2 is one guided image), or None (any)", 1, or_none=True)
_TOLERANCE = Bounds(Real, "a finite number, 0 or more, such as 0.0001", 0, sys.float_info.max)


@dataclass(frozen=True)
class ExportedComponent:
    """A program that was written and compared with its model."""

    name: str  # of its folder
    files: list[str]
    difference: float  # the largest from the model, as a fraction of the largest output if that is above 1
    inputs: dict[str, dict[str, Any]]  # ``shape``, in which None is dynamic, and ``dtype`` by name


def export_pipeline(
    pipe: Any, folder: str | Path, *, height: int, width: int, rows: int | None = None, overwrite: bool = False,
    tolerance: float = TOLERANCE, metadata: dict[str, Any] | None = None,
) -> list[ExportedComponent]:  # fmt: skip
    """Write a pipeline as static programs and compare each with its model.

    Args:
        pipe: a ``StableDiffusionPipeline`` or ``StableDiffusionControlNetPipeline`` in float32, with or without ToMe.
        folder: an empty folder; created if absent.
        height, width: of the images in pixels, multiples of 8; the programs take this size alone.
        rows: of the UNet's batch, two for each image with guidance; None is dynamic.
        overwrite: replace an earlier export, if the folder holds nothing else.
        tolerance: the largest difference allowed between a program and its model.
        metadata: more entries for ``export.json``, plain values for JSON.

    Raises:
        ToMeTypeError, ToMeValueError: an argument, the pipeline or its settings of ToMe cannot be exported, the folder
            holds other files, or a program differs from its model; nothing is written then.
        OSError: a file cannot be written.
    """
    folder = Path(folder)
    height, width, rows = _SIDE.check("height", height), _SIDE.check("width", width), _ROWS.check("rows", rows)
    tolerance = _TOLERANCE.check("tolerance", tolerance)
    _require_deployable(pipe)
    configs = _find_configs(pipe)
    require_folder(folder, overwrite=overwrite)
    components = _list_components(pipe, height, width, rows)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as work_name:
        work = Path(work_name)
        _write_config(pipe, work)
        for component in components:
            component.save(work)
        exported = [_check_program(component, work, tolerance) for component in components]
        description = {
            **(metadata or {}), "height": height, "width": width, "rows": rows, "paddle": paddle.__version__,
            "tolerance": tolerance, "tome": {name: config.to_dict() for name, config in configs.items()},
            "components": [*map(asdict, exported)],
        }  # fmt: skip
        if len(set(configs.values())) == 1:
            configs["unet"].save(work / SETTINGS)
        publish(work, folder, description)
    return exported


def _require_deployable(pipe: Any) -> None:
    """Refuse a pipeline that ppdiffusers' deploy pipelines cannot run."""
    class_name, controlnet = type(pipe).__name__, getattr(pipe, "controlnet", None)
    if class_name not in ("StableDiffusionPipeline", "StableDiffusionControlNetPipeline"):
        raise ToMeValueError(
            f"a {class_name} cannot be exported; give a StableDiffusionPipeline or StableDiffusionControlNetPipeline, "
            "or export its denoiser with paddle.jit.save"
        )
    if controlnet is not None and type(controlnet).__name__ != "ControlNetModel":
        raise ToMeValueError(
            f"a {type(controlnet).__name__} cannot be exported; the deploy pipelines take one ControlNet"
        )
    channels = (pipe.unet.config.in_channels, pipe.vae.config.latent_channels)
    if channels != (LATENT_CHANNELS, LATENT_CHANNELS) or pipe.vae_scale_factor != VAE_SCALE_FACTOR:
        raise ToMeValueError(
            f"a UNet of {channels[0]} and a VAE of {channels[1]} channels at 1/{pipe.vae_scale_factor} of the size "
            f"cannot be exported; the deploy pipelines take {LATENT_CHANNELS} channels at 1/{VAE_SCALE_FACTOR}"
        )
    for name in ("unet", "controlnet", "text_encoder", "vae"):
        model = getattr(pipe, name, None)
        dtypes = {parameter.dtype for parameter in model.parameters()} if model is not None else set()
        if others := dtypes - {paddle.float32}:
            raise ToMeValueError(
                f"{name} in {others.pop()} cannot be exported; load it in float32, and let Paddle Inference convert it"
            )


def _find_configs(pipe: Any) -> dict[str, ToMeConfig]:
    """Find the settings of each denoiser; ratio 0 means no merging."""
    configs = {}
    for name, model in (("unet", pipe.unet), ("controlnet", getattr(pipe, "controlnet", None))):
        if model is not None:
            tome = get_tome(model)
            configs[name] = ToMeConfig(0) if tome is None else tome.config
            require_exportable(configs[name])
    return configs


def _list_components(pipe: Any, height: int, width: int, rows: int | None) -> list[Component]:
    text_tokens, vae, controlnet = pipe.tokenizer.model_max_length, pipe.vae, getattr(pipe, "controlnet", None)
    latent: list[int | None] = [None, LATENT_CHANNELS, height // VAE_SCALE_FACTOR, width // VAE_SCALE_FACTOR]
    return [
        Component("text_encoder", TextEncoder(pipe.text_encoder), {"input_ids": ([None, None], "int64")}, text_tokens),
        build_denoiser_component(pipe.unet, controlnet, height=height, width=width, rows=rows, text_tokens=text_tokens),
        Component("vae_encoder", VaeEncoder(vae), {"sample": ([None, 3, height, width], "float32")}),
        Component("vae_decoder", VaeDecoder(vae), {"latent_sample": (latent, "float32")}),
    ]


def _write_config(pipe: Any, folder: Path) -> None:
    """Write the deploy pipeline's index, tokenizer and scheduler by ppdiffusers itself."""
    import ppdiffusers

    infix = "" if getattr(pipe, "controlnet", None) is None else "ControlNet"
    deploy_class = getattr(ppdiffusers, f"PaddleInferStableDiffusion{infix}Pipeline")
    programs = {name: ppdiffusers.PaddleInferRuntimeModel() for name in PROGRAMS}
    deployed = deploy_class(
        **programs, tokenizer=pipe.tokenizer, scheduler=pipe.scheduler, safety_checker=None, feature_extractor=None,
        image_encoder=None, requires_safety_checker=False,
    )  # fmt: skip
    deployed.save_config(str(folder))
    pipe.tokenizer.save_pretrained(str(folder / "tokenizer"))
    pipe.scheduler.save_pretrained(str(folder / "scheduler"))


def _check_program(component: Component, folder: Path, tolerance: float) -> ExportedComponent:
    """Run a program and compare its outputs with the model's.

    Raises:
        ToMeValueError: they differ by more than the tolerance.
    """
    program, differences = load_program(folder / component.name), []
    for example in component.make_examples():
        expected = component.run(example)
        differences.append(np.abs(program(**example)[0].numpy() - expected).max() / max(1.0, np.abs(expected).max()))
    difference = float(np.max(differences))  # NaN if any is
    if not difference <= tolerance:
        raise ToMeValueError(
            f"the program of {component.name} differs from its model by {difference:.1e}, more than "
            f"tolerance={tolerance:g}, so nothing was written; raise the tolerance if this device's kernels differ so"
        )
    files = sorted(path.name for path in (folder / component.name).glob(f"{PROGRAM}.*"))
    inputs = {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in component.inputs.items()}
    return ExportedComponent(component.name, files, difference, inputs)
