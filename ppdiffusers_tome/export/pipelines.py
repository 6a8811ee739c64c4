"""A pipeline as static programs, in the layout that ppdiffusers' deploy pipelines read; merging is part of the graph.

The layout is that of ppdiffusers' ``deploy/*/export_model.py``: ``model_index.json``, ``tokenizer``, ``scheduler``, and
a program each in ``text_encoder``, ``unet`` (with the ControlNet, where there is one), ``vae_encoder`` and
``vae_decoder``. Beside it stand ``tome.json``, the settings (for ``ToMeConfig.load``; ``tome.unet.json`` and
``tome.controlnet.json`` where they differ), and ``export.json``, what was exported and how it was checked.

Height and width are fixed, as they decide how many tokens merge; the batch may stay open. Random destinations are a
hash of seed, timestep and grid that is computed in the graph (see ``merging/partition.py``), so a program gives the
same for the same inputs, whatever a generator holds.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import ToMeValueError, UserError
from ppdiffusers_tome.export.checks import TOLERANCE, require_onnx
from ppdiffusers_tome.export.layout import EXPORT, INDEX, PROGRAM, PROGRAMS, files_in, put_in_place, require_place
from ppdiffusers_tome.export.onnx import Onnx, norms_on_pictures
from ppdiffusers_tome.export.programs import (
    CHANNELS,
    VAE_SCALE,
    Component,
    TextEncoder,
    VaeDecoder,
    VaeEncoder,
    denoiser_component,
    load_program,
)
from ppdiffusers_tome.export.settings import applied_settings, denoisers_of, require_all_exportable, settings_files

_RUNTIME = "PaddleInferRuntimeModel"


def components_of(pipe: Any, *, height: int, width: int, rows: int | None = None) -> list[Component]:
    """The programs that a pipeline becomes; of all but the UNet the batch stays open."""
    text_tokens, vae = pipe.tokenizer.model_max_length, pipe.vae
    latent: list[int | None] = [None, CHANNELS, height // VAE_SCALE, width // VAE_SCALE]
    return [
        Component("text_encoder", lambda: TextEncoder(pipe.text_encoder), {"input_ids": ([None, None], "int64")},
             text_tokens),
        denoiser_component(pipe.unet, getattr(pipe, "controlnet", None), height=height, width=width, rows=rows,
                      text_tokens=text_tokens),
        Component("vae_encoder", lambda: VaeEncoder(vae), {"sample": ([None, 3, height, width], "float32")}),
        Component("vae_decoder", lambda: VaeDecoder(vae), {"latent_sample": (latent, "float32")}),
    ]  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """A component that was written and run.

    Attributes:
        name: of its folder.
        files: its programs.
        rows: it was run with.
        difference: the largest from the model itself, of any program, as a share of the largest output above 1.
    """

    name: str
    files: list[str]
    rows: list[int]
    difference: float


def export_pipeline(
    pipe: Any, folder: str | Path, *, height: int, width: int, rows: int | None = None, onnx: bool = False,
    overwrite: bool = False, tolerance: float = TOLERANCE, about: dict[str, Any] | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> list[Checked]:  # fmt: skip
    """Write a pipeline as static programs, run each, and put them in place when they give what the models give.

    Args:
        pipe: a ``StableDiffusionPipeline`` or ``StableDiffusionControlNetPipeline``, float32, with ToMe applied or not.
        folder: where to; made where it does not exist.
        height, width: of the pictures in pixels, multiples of 8; the programs are for this size alone.
        rows: of the UNet's input, two a picture with guidance. None leaves them open.
        onnx: write every component for ONNX too, which takes Paddle 2 with paddle2onnx and onnxruntime.
        overwrite: replace an earlier export; whatever else is in the folder stays.
        tolerance: how far outputs may be from the models'.
        about: more to be recorded in ``export.json``.
        done: told each component's name when it is written.

    Raises:
        ToMeValueError: the deploy pipelines do not take such a pipeline, its settings of ToMe cannot become part of a
            program, or a program differs; nothing is written then.
        UserError: a file cannot be written, or something is there that must not be replaced.
    """
    folder = Path(folder)
    _require_deployable(pipe)
    models = denoisers_of(pipe)
    require_all_exportable(models)
    if onnx:
        require_onnx()
    require_place(folder, overwrite=overwrite)
    components = components_of(pipe, height=height, width=width, rows=rows)
    with _unfinished(folder) as work:
        _write_pipeline(pipe, work)
        require_place(folder, files_in(work), overwrite=overwrite)
        for component in components:
            with norms_on_pictures(pipe.vae):
                component.save(work)
            if onnx:
                Onnx(work / component.name / PROGRAM).convert()
            # On a full disk Paddle writes what fits and says nothing; this would not fit either, and says so.
            (work / ".room").write_bytes(bytes(2**16))
            (work / ".room").unlink()
            done(component.name)
        deployed = load_exported(work)
        checked = [_checked(component, deployed, work, tolerance) for component in components]
        export = {
            **(about or {}), "height": height, "width": width, "rows": rows, "paddle": paddle.__version__,
            "tolerance": tolerance, "tome": applied_settings(models),
            "components": [
                {**vars(each), "inputs": _plain(component)}
                for each, component in zip(checked, components, strict=True)
            ],
        }  # fmt: skip
        (work / EXPORT).write_text(json.dumps(export, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        for name, config in settings_files(models).items():
            config.save(work / name)
        put_in_place(work, folder, overwrite=overwrite)
    return checked


def load_exported(folder: str | Path) -> Any:
    """Load what ``export_pipeline`` wrote into ppdiffusers' deploy pipeline that it is for.

    That pipeline's own ``from_pretrained`` does, on Paddle 3 with what Paddle 2 exported. Otherwise it fails: Paddle 3
    names its programs as ppdiffusers does not look for, and its oneDNN, on by default, runs no UNet that it exported;
    Paddle 2.6.2 ends where ppdiffusers hands it tensors (see ``Program``). On a CPU what this returns draws to its end.
    """
    import ppdiffusers

    folder = Path(folder)
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    programs = {name: load_program(folder / name) for name, (_, kind) in _listed(index) if kind == _RUNTIME}
    pipe = getattr(ppdiffusers, index["_class_name"]).from_pretrained(str(folder), **programs)
    pipe.progress_bar = _to_its_end(pipe)
    return pipe


def _to_its_end(pipe: Any) -> Callable[..., Any]:
    """The progress bar of a deploy pipeline, which gets past the end of its loop where there is no GPU.

    After the last step, still inside the bar, the pipeline calls ``paddle.device.synchronize()`` to have times per step
    right, and without a GPU Paddle raises there. All steps are done by then, so that error ends the bar and no more.
    """
    made = pipe.progress_bar

    @contextmanager
    def bar_of(total: int | None) -> Iterator[Any]:
        with made(total=total) as bar:
            try:
                yield bar
            except TypeError as error:
                frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
                refused = frames[-1].f_code is paddle.device.synchronize.__code__
                theirs = {cls.__module__ for cls in type(pipe).__mro__}
                if not refused or frames[-2].f_globals["__name__"] not in theirs:  # or a callback called it
                    raise

    return lambda iterable=None, total=None: bar_of(total) if iterable is None else made(iterable)


def _listed(index: dict[str, Any]) -> Sequence[tuple[str, list[Any]]]:
    return [(name, value) for name, value in index.items() if isinstance(value, list) and value[0] is not None]


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """A folder to write into, on the same disk; it is gone afterwards.

    Raises:
        UserError: writing into it failed.
    """
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as work:
            yield Path(work)
    except OSError as error:
        if error.strerror is None:  # not the system's; ppdiffusers says by them what it cannot load
            raise
        raise UserError(
            f"--output {folder} cannot be written ({error.strerror}); make room or choose another --output"
        ) from error


def _require_deployable(pipe: Any) -> None:
    kind = type(pipe).__name__
    if kind not in ("StableDiffusionPipeline", "StableDiffusionControlNetPipeline"):
        raise ToMeValueError(
            f"a {kind} cannot be exported; give a StableDiffusionPipeline or StableDiffusionControlNetPipeline, or "
            "export its denoiser with paddle.jit.save"
        )
    config, control = pipe.unet.config, getattr(pipe, "controlnet", None)
    if control is not None and type(control).__name__ != "ControlNetModel":
        raise ToMeValueError(f"a {type(control).__name__} cannot be exported; the deploy pipelines take one ControlNet")
    found = (config.in_channels, pipe.vae.config.latent_channels, pipe.vae_scale_factor)
    if found != (CHANNELS, CHANNELS, VAE_SCALE):
        raise ToMeValueError(
            f"a UNet of {found[0]} and a VAE of {found[1]} channels at 1/{found[2]} of the size cannot be exported; "
            f"the deploy pipelines take {CHANNELS} and {CHANNELS} channels at 1/{VAE_SCALE}"
        )
    if pipe.unet.dtype != paddle.float32:
        raise ToMeValueError(
            f"a model in {pipe.unet.dtype} cannot be exported; load it in float32, and let Paddle Inference convert it"
        )


def _write_pipeline(pipe: Any, folder: Path) -> None:
    """Everything but the programs; it is written as ppdiffusers itself writes it."""
    import ppdiffusers

    guided = getattr(pipe, "controlnet", None) is not None
    cls = getattr(ppdiffusers, f"PaddleInferStableDiffusion{'ControlNet' if guided else ''}Pipeline")
    programs = {name: ppdiffusers.PaddleInferRuntimeModel() for name in PROGRAMS}
    deployed = cls(
        **programs, tokenizer=pipe.tokenizer, scheduler=pipe.scheduler, safety_checker=None, feature_extractor=None,
        image_encoder=None, requires_safety_checker=False,
    )  # fmt: skip
    deployed.save_config(str(folder))
    pipe.tokenizer.save_pretrained(str(folder / "tokenizer"))
    pipe.scheduler.save_pretrained(str(folder / "scheduler"))


def _checked(component: Component, deployed: Any, folder: Path, tolerance: float) -> Checked:
    """Run a component and compare it with the model."""
    program, found = getattr(deployed, component.name), []
    examples = component.examples()
    converted = Onnx(folder / component.name / PROGRAM)
    for example in examples:
        wanted = component.run(example)
        outputs = [program(**example)[0].numpy()]
        if converted.file.exists():
            outputs.append(converted.run({name: value.numpy() for name, value in example.items()}))
        found += [np.abs(output - wanted).max() / max(1.0, np.abs(wanted).max()) for output in outputs]
    difference = float(max(found))
    if not difference <= tolerance:
        raise ToMeValueError(
            f"{component.name} as exported differs from the model by {difference:.1e}, more than {tolerance:g}, so "
            "nothing was written; allow more if that is what this device's own kernels differ by"
        )
    ends = (".pdmodel", ".json", ".onnx")
    written = folder / component.name
    files = [f"{PROGRAM}{end}" for end in ends if (written / f"{PROGRAM}{end}").exists()]
    rows = [next(iter(example.values())).shape[0] for example in examples]
    return Checked(component.name, files, rows, difference)


def _plain(component: Component) -> dict[str, Any]:
    return {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in component.inputs.items()}
