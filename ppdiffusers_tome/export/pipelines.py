"""Pipelines as static programs that ppdiffusers' deploy pipelines load, merging included.

The files are those of ppdiffusers' ``deploy/*/export_model.py``: ``model_index.json``, ``tokenizer``, ``scheduler``,
and a program in each of ``text_encoder``, ``unet`` (with the ControlNet, if there is one), ``vae_encoder`` and
``vae_decoder``. Two more describe them: ``tome.json`` holds the settings, for ``ToMeConfig.load``, unless denoisers
differ; ``export.json`` has those of each, the sizes and the checks.

Height and width are fixed, as they decide how many tokens merge; the batch may be dynamic.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.export.folder import (
    DENOISERS,
    PROGRAM,
    PROGRAMS,
    SETTINGS,
    TOLERANCE,
    publish,
    require_exportable,
    require_folder,
)
from ppdiffusers_tome.export.loading import load_exported
from ppdiffusers_tome.export.programs import (
    LATENT_CHANNELS,
    VAE_SCALE_FACTOR,
    Component,
    TextEncoder,
    VaeDecoder,
    VaeEncoder,
    build_denoiser_component,
)
from ppdiffusers_tome.patching.apply import AppliedBlocks, get_tome
from ppdiffusers_tome.patching.legacy_port import has_legacy_port
from ppdiffusers_tome.settings.bounds import Bounds
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import shorten_repr

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
        metadata: more entries for ``export.json``, plain values.

    Raises:
        ToMeTypeError, ToMeValueError: an argument, the pipeline or its settings of ToMe cannot be exported, the folder
            holds other files, or a program differs from its model; nothing is written then.
        OSError: a file cannot be written.
    """
    folder = Path(folder)
    height, width, rows = _SIDE.check("height", height), _SIDE.check("width", width), _ROWS.check("rows", rows)
    tolerance = _TOLERANCE.check("tolerance", tolerance)
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ToMeValueError(f"metadata={shorten_repr(metadata)} must be plain values for JSON ({error})") from error
    _require_deployable(pipe)
    denoisers = _list_denoisers(pipe)
    require_folder(folder, overwrite=overwrite)
    components = _list_components(pipe, height, width, rows)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as work_name:
        work = Path(work_name)
        _write_config(pipe, work)
        for component in components:
            component.save(work)
            probe = work / ".free-space"
            probe.write_bytes(bytes(2**16))  # Paddle ignores that a disk is full
            probe.unlink()
        deployed = load_exported(work)
        exported = [_check_program(component, deployed, work, tolerance) for component in components]
        description = {
            **(metadata or {}), "height": height, "width": width, "rows": rows, "paddle": paddle.__version__,
            "tolerance": tolerance, "tome": describe_settings(denoisers), "components": [*map(asdict, exported)],
        }  # fmt: skip
        config = find_common_config(denoisers.values())
        if config is not None:
            config.save(work / SETTINGS)
        publish(work, folder, description)
    return exported


def describe_settings(denoisers: Mapping[str, Any]) -> dict[str, Any]:
    """Describe by denoiser which blocks merge with which settings, for JSON."""
    return {
        name: [{"settings": each.config.to_dict(), "blocks": list(each.paths)} for each in _list_entries(model)] or None
        for name, model in denoisers.items()
    }


def find_common_config(models: Iterable[Any]) -> ToMeConfig | None:
    """Find the config that all models have; ratio 0 means no merging."""
    by_model = ([each.config for each in _list_entries(model)] or [ToMeConfig(0)] for model in models)
    configs = set(chain.from_iterable(by_model))
    return configs.pop() if len(configs) == 1 else None


def _list_entries(model: Any) -> tuple[AppliedBlocks, ...]:
    applied = get_tome(model)
    return () if applied is None else applied.entries


def _list_denoisers(pipe: Any) -> dict[str, Any]:
    """Return the models that may merge, by name; refuse unsupported settings."""
    models = {name: model for name in DENOISERS if (model := getattr(pipe, name, None)) is not None}
    for name, model in models.items():
        if has_legacy_port(model):
            raise ToMeValueError(
                f"ppdiffusers' own port of token merging is on {name} and cannot be exported; call remove_tome, or "
                "apply_tome in its place"
            )
        for entry in _list_entries(model):
            require_exportable(entry.config, name)
    return models


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


def _list_components(pipe: Any, height: int, width: int, rows: int | None) -> list[Component]:
    text_tokens, vae, controlnet = pipe.tokenizer.model_max_length, pipe.vae, getattr(pipe, "controlnet", None)
    latent: list[int | None] = [None, LATENT_CHANNELS, height // VAE_SCALE_FACTOR, width // VAE_SCALE_FACTOR]
    return [
        Component(
            "text_encoder", lambda: TextEncoder(pipe.text_encoder), {"input_ids": ([None, None], "int64")}, text_tokens
        ),
        build_denoiser_component(pipe.unet, controlnet, height=height, width=width, rows=rows, text_tokens=text_tokens),
        Component("vae_encoder", lambda: VaeEncoder(vae), {"sample": ([None, 3, height, width], "float32")}),
        Component("vae_decoder", lambda: VaeDecoder(vae), {"latent_sample": (latent, "float32")}),
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


def _check_program(component: Component, deployed: Any, folder: Path, tolerance: float) -> ExportedComponent:
    """Run a program and compare its outputs with the model's.

    Raises:
        ToMeValueError: they differ by more than the tolerance.
    """
    program, differences = getattr(deployed, component.name), []
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
