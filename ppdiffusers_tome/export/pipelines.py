"""Pipelines as static programs that ppdiffusers' deploy pipelines load, merging included.

The files are those of ppdiffusers' ``deploy/*/export_model.py``: ``model_index.json``, ``tokenizer``, ``scheduler``,
and a program in each of ``text_encoder``, ``unet`` (with the ControlNet, if there is one), ``vae_encoder`` and
``vae_decoder``. Two more describe them: ``tome.json`` holds the settings, for ``ToMeConfig.load``
(``tome.unet.json`` and ``tome.controlnet.json`` if they differ), and ``export.json`` the sizes and the checks.

Height and width are fixed, as they decide how many tokens merge; the batch may be dynamic.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.export import layout
from ppdiffusers_tome.export.layout import TOLERANCE
from ppdiffusers_tome.export.programs import (
    LATENT_CHANNELS,
    VAE_SCALE_FACTOR,
    Component,
    TextEncoder,
    VaeDecoder,
    VaeEncoder,
    denoiser_component,
    load_program,
)
from ppdiffusers_tome.patching.apply import AppliedBlocks, applied_tome
from ppdiffusers_tome.patching.blocks import find_blocks, select_blocks
from ppdiffusers_tome.patching.legacy_port import has_legacy_port
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import check_type

_LOCK = threading.Lock()
_REPLACED: list[Callable[..., None]] = []  # Paddle's function, once for each call that replaces it


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
        folder: the folder of the export; created if absent.
        height, width: of the images in pixels, multiples of 8; the programs take this size alone.
        rows: of the UNet's batch, two for each image with guidance; None is dynamic.
        overwrite: replace an earlier export; all other files in the folder stay.
        tolerance: the largest difference allowed between a program and its model.
        metadata: more entries for ``export.json``.

    Raises:
        ToMeTypeError, ToMeValueError: an argument, the pipeline or its settings of ToMe cannot be exported, the folder
            holds something that must not be replaced, or a program differs from its model; nothing is written then.
        OSError: a file cannot be written.
    """
    folder = Path(folder)
    _require_image_size(height, width, rows)
    _require_deployable(pipe)
    denoisers = _list_denoisers(pipe)
    layout.require_folder(folder, overwrite=overwrite)
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
        for name, config in list_settings_files(denoisers).items():
            config.save(work / name)
        layout.publish(work, folder, description, overwrite=overwrite)
    return exported


def load_exported(folder: str | Path) -> Any:
    """Load an export of ``export_pipeline`` into ppdiffusers' deploy pipeline.

    The pipeline generates images of the exported size, which is the default of its ``height`` and ``width``, and
    refuses another size with a ``ToMeValueError``. On a CPU, where Paddle refuses the ``paddle.device.synchronize()``
    after its last step, that returns at once while a call runs.

    The deploy pipeline's own ``from_pretrained`` loads only what Paddle 2 exported, on Paddle 3: it does not know the
    names of Paddle 3's programs, turns on oneDNN, with which no UNet of Paddle 3 runs, and ends the process on Paddle
    2.6.2 (see ``Program``).

    Args:
        folder: the folder of an export.

    Returns:
        A ``PaddleInferStableDiffusionPipeline`` or ``PaddleInferStableDiffusionControlNetPipeline``.

    Raises:
        ToMeValueError: the folder holds no export, or an incomplete one.
        OSError: a file cannot be read.
    """
    import ppdiffusers

    folder = Path(folder)
    try:
        index = json.loads((folder / layout.INDEX).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ToMeValueError(f"{folder / layout.INDEX} cannot be read ({error}); export the pipeline again") from error
    index = index if isinstance(index, dict) else {}
    programs = {
        name: load_program(folder / name)
        for name, value in index.items() if isinstance(value, list) and value[-1:] == ["PaddleInferRuntimeModel"]
    }  # fmt: skip
    deploy_class = getattr(ppdiffusers, str(index.get("_class_name")), None)
    if not programs or deploy_class is None:
        raise ToMeValueError(f"{folder / layout.INDEX} describes no exported pipeline; give the folder of an export")
    pipe = deploy_class.from_pretrained(str(folder), **programs)
    pipe.__class__ = type(type(pipe).__name__, (_ExportedPipeline, type(pipe)), {})
    export = layout.read_export(folder)
    if export is not None:  # ppdiffusers' own scripts write none
        pipe.exported_size = (export["height"], export["width"])
        for component in export["components"]:
            shapes = {name: entry["shape"] for name, entry in component["inputs"].items()}
            programs[component["name"]].input_shapes = shapes
    return pipe


class _ExportedPipeline:
    """A deploy pipeline that generates images of the exported size, also on a CPU."""

    exported_size: tuple[int, int] | None = None  # height and width in pixels

    def __call__(
        self, prompt: Any = None, height: int | None = None, width: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Generate images; the arguments are those of the deploy pipeline.

        Raises:
            ToMeValueError: another size is given.
        """
        given, exported = (height, width), self.exported_size
        height, width = given if exported is None else exported
        if any(size not in (None, expected) for size, expected in zip(given, (height, width), strict=True)):
            raise ToMeValueError(
                f"height={given[0]}, width={given[1]} cannot be generated: this pipeline was exported for "
                f"height={height}, width={width} alone, as the size decides how many tokens merge; omit both, or "
                "export the pipeline again for this size"
            )
        with _skip_synchronize() if paddle.get_device() == "cpu" else nullcontext():
            return super().__call__(prompt, height, width, *args, **kwargs)  # type: ignore[misc]


@contextmanager
def _skip_synchronize() -> Iterator[None]:
    """Have ``paddle.device.synchronize()`` return at once while calls of any thread run."""
    with _LOCK:
        synchronize = _REPLACED[0] if _REPLACED else paddle.device.synchronize
        _REPLACED.append(synchronize)
        paddle.device.synchronize = lambda device=None: None if device is None else synchronize(device)
    try:
        yield
    finally:
        with _LOCK:
            _REPLACED.pop()
            if not _REPLACED:
                paddle.device.synchronize = synchronize


def describe_settings(denoisers: Mapping[str, Any]) -> dict[str, Any]:
    """Describe by denoiser which blocks merge with which settings, for JSON."""
    return {
        name: [{"settings": entry.config.to_dict(), "blocks": list(entry.paths)} for entry in _entries(model)] or None
        for name, model in denoisers.items()
    }


def list_settings_files(denoisers: Mapping[str, Any]) -> dict[str, ToMeConfig]:
    """Return the settings to save, by file name.

    Applying them merges exactly the blocks that merge now. There is one ``tome.json`` if one config does that for all
    denoisers, otherwise a file for each denoiser for which one config does. Ratio 0 means no merging.
    """
    if (config := _find_common_config(denoisers.values())) is not None:
        return {layout.SETTINGS: config}
    configs = {layout.DENOISER_SETTINGS[name]: _find_common_config([model]) for name, model in denoisers.items()}
    return {name: config for name, config in configs.items() if config is not None}


def _find_common_config(models: Iterable[Any]) -> ToMeConfig | None:
    """Find the config that merges exactly the blocks that merge now."""
    models = list(models)
    config, *others = {entry.config for model in models for entry in _entries(model)} or {ToMeConfig(0)}
    for model in models:
        merging = {path for entry in _entries(model) for path in entry.paths}
        selected = {block.name for block in select_blocks(find_blocks(model), config)}
        if merging != selected and (merging or config.ratio):
            return None
    return None if others else config


def _entries(model: Any) -> tuple[AppliedBlocks, ...]:
    applied = applied_tome(model)
    return () if applied is None else applied.entries


def _list_denoisers(pipe: Any) -> dict[str, Any]:
    """Return the models that may merge, by name; refuse unsupported settings."""
    models = {name: model for name in layout.DENOISERS if (model := getattr(pipe, name, None)) is not None}
    for name, model in models.items():
        if has_legacy_port(model):
            raise ToMeValueError(
                f"ppdiffusers' own port of token merging is on {name} and cannot be exported; call remove_tome, or "
                "apply_tome in its place"
            )
        for entry in _entries(model):
            layout.require_exportable(entry.config, name)
    return models


def _require_image_size(height: int, width: int, rows: int | None) -> None:
    """Refuse sizes for which no program can be written."""
    side, any_rows = (VAE_SCALE_FACTOR, "a multiple of 8, such as 512"), (1, "1 or more; 2 is one guided image")
    for name, value, (multiple, accepted) in (
        ("height", height, side), ("width", width, side), ("rows", 1 if rows is None else rows, any_rows),
    ):  # fmt: skip
        check_type(value, int, "a whole number", f"{name}=")
        if value < 1 or value % multiple:
            raise ToMeValueError(f"{name}={value} must be {accepted}")


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
    if pipe.unet.dtype != paddle.float32:
        raise ToMeValueError(
            f"a model in {pipe.unet.dtype} cannot be exported; load it in float32, and let Paddle Inference convert it"
        )


def _list_components(pipe: Any, height: int, width: int, rows: int | None) -> list[Component]:
    text_tokens, vae, controlnet = pipe.tokenizer.model_max_length, pipe.vae, getattr(pipe, "controlnet", None)
    latent: list[int | None] = [None, LATENT_CHANNELS, height // VAE_SCALE_FACTOR, width // VAE_SCALE_FACTOR]
    return [
        Component(
            "text_encoder", lambda: TextEncoder(pipe.text_encoder), {"input_ids": ([None, None], "int64")}, text_tokens
        ),
        denoiser_component(pipe.unet, controlnet, height=height, width=width, rows=rows, text_tokens=text_tokens),
        Component("vae_encoder", lambda: VaeEncoder(vae), {"sample": ([None, 3, height, width], "float32")}),
        Component("vae_decoder", lambda: VaeDecoder(vae), {"latent_sample": (latent, "float32")}),
    ]


def _write_config(pipe: Any, folder: Path) -> None:
    """Write the deploy pipeline's index, tokenizer and scheduler by ppdiffusers itself."""
    import ppdiffusers

    infix = "" if getattr(pipe, "controlnet", None) is None else "ControlNet"
    deploy_class = getattr(ppdiffusers, f"PaddleInferStableDiffusion{infix}Pipeline")
    programs = {name: ppdiffusers.PaddleInferRuntimeModel() for name in layout.PROGRAMS}
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
    for example in component.examples():
        expected = component.run(example)
        differences.append(np.abs(program(**example)[0].numpy() - expected).max() / max(1.0, np.abs(expected).max()))
    difference = float(max(differences))
    if not difference <= tolerance:
        raise ToMeValueError(
            f"the program of {component.name} differs from its model by {difference:.1e}, more than "
            f"tolerance={tolerance:g}, so nothing was written; raise the tolerance if this device's kernels differ so"
        )
    files = sorted(path.name for path in (folder / component.name).glob(f"{layout.PROGRAM}.*"))
    inputs = {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in component.inputs.items()}
    return ExportedComponent(component.name, files, difference, inputs)
