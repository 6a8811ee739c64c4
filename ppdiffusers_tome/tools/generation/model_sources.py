"""Finding models: the bundled one, folders in ppdiffusers' or diffusers' format, hub names.

Knows no Paddle, so that a wrong name or a missing part is reported at once, before anything of a folder is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.demo_model import CONTROLNET, DIT, MODEL, check_sums
from ppdiffusers_tome.tools.generation.class_labels import PIPELINE, ClassLabels
from ppdiffusers_tome.tools.generation.safety_checks import pickles_of, read_json, refuse_code

BUNDLED, BUNDLED_DIT = "bundled", "bundled-dit"

_DENOISERS = ("unet", "transformer", "prior", "decoder")  # their weights tell the format of all
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PADDLE_WEIGHTS = ("diffusion_paddle_model*", "model_state*.pdparams*")
_TORCH_WEIGHTS = ("diffusion_pytorch_model*",)
_TEXT_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "model_state*.pdparams")


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        name: what the user called it.
        folder: where it lies; None when it is fetched from a hub.
        from_diffusers: True when its weights are PyTorch's; None leaves it to ppdiffusers (``FROM_DIFFUSERS``).
        bundled: True for what comes with this package.
        labels: what it draws in place of prompts; None where it takes prompts, or is fetched from a hub.
        pickles: weights in the folder that are pickles, which can run any code when they are loaded.
        vae: the folder of its VAE where that is not inside its own folder.
    """

    name: str
    folder: Path | None
    from_diffusers: bool | None
    bundled: bool = False
    labels: ClassLabels | None = field(default=None, hash=False)
    pickles: tuple[Path, ...] = ()
    vae: Path | None = None

    @property
    def arguments(self) -> tuple[str, dict[str, Any]]:
        """The name and the keywords for ``from_pretrained``."""
        keywords = {} if self.from_diffusers is None else {"from_diffusers": self.from_diffusers}
        return str(self.folder or self.name), keywords


def find_model(name: str, *, any_kind: bool = False, class_labels: bool = False) -> ModelSource:
    """Find a pipeline.

    Args:
        name: ``bundled``, ``bundled-dit``, a folder, or a hub name such as ``runwayml/stable-diffusion-v1-5``.
        any_kind: take pipelines too that cannot draw from a prompt.
        class_labels: take a DiTPipeline too, whose source then has ``labels``.

    Raises:
        UserError: there is no such folder, a part of the pipeline is missing from it, or loading it would run more
            than its name says.
    """
    source = _find(name, "--model", {BUNDLED: MODEL, BUNDLED_DIT: DIT}, "a pipeline's", "model_index.json")
    if source.folder is None:
        return source
    index = read_json(source.folder / "model_index.json")
    parts = _parts(index, source.folder / "model_index.json")
    labelled = class_labels and index.get("_class_name") == PIPELINE
    if not any_kind and not labelled and not {"unet", "vae"} <= parts.keys():
        raise no_text_to_image(name, index.get("_class_name"))
    if not source.bundled:
        for part, class_name in parts.items():
            _check_part(source.folder / part, class_name)
    denoiser = next((part for part in _DENOISERS if part in parts), next(iter(parts), ""))
    torch = _is_torch(source.folder / denoiser)
    pickles = (path for part in parts for path in pickles_of(source.folder / part, torch))
    labels = ClassLabels.from_folder(source.folder, only_named=source.bundled) if labelled else None
    return replace(source, from_diffusers=torch, pickles=tuple(pickles), labels=labels)


def find_controlnet(name: str) -> ModelSource:
    """Find a ControlNet: ``bundled``, a folder, or a hub name such as ``lllyasviel/sd-controlnet-canny``.

    Raises:
        UserError: there is no such folder, its configuration or weights are missing, or loading it would run more
            than its name says.
    """
    source = _find(name, "--controlnet", {BUNDLED: CONTROLNET}, "a ControlNet's", "config.json")
    if source.folder is None:
        return source
    _check_part(source.folder, "ControlNetModel")
    torch = _is_torch(source.folder)
    return replace(source, from_diffusers=torch, pickles=tuple(pickles_of(source.folder, torch)))


def no_text_to_image(name: str, class_name: object) -> UserError:
    """That a pipeline cannot draw from a prompt."""
    return UserError(
        f"--model {name} is a {class_name} without a unet and a vae; give a text-to-image pipeline such as Stable "
        "Diffusion"
    )


def _find(name: str, option: str, bundled: Mapping[str, Path], whose: str, index: str) -> ModelSource:
    """The folder or hub name that a word stands for.

    Args:
        name: the word, given as ``option``.
        bundled: the folders of what comes with this package, by the words for them.
        whose, index: whose folder it is to be, and the file that every such folder has.
    """
    folder = bundled.get(name, Path(name))
    known = f"a hub name or {' or '.join(map(repr, bundled))}"
    # os.path says False of what is no path at all, where Path raises: too long, or with a null byte.
    folder = Path(os.path.expanduser(folder))
    if not os.path.isdir(folder):
        if os.path.exists(folder):
            raise UserError(f"{option} {name} is a file; give {whose} folder, {known}")
        if name in bundled:
            raise UserError(f"{option} {name}: {folder} is missing; install the package again")
        if _HUB_NAME.fullmatch(name):
            return ModelSource(name, None, None)
        raise UserError(f"{option} {name} does not exist; give {whose} folder, {known}")
    if folder.resolve() in [each.resolve() for each in bundled.values()]:
        shares_vae = folder.resolve() == DIT.resolve()
        for checked in (folder, MODEL) if shares_vae else (folder,):
            check_sums(checked)
        return ModelSource(name, folder, None, bundled=True, vae=MODEL / "vae" if shares_vae else None)
    if not (folder / index).is_file():
        raise UserError(f"{option} {name} has no {index}; give {whose} folder, as save_pretrained writes it")
    refuse_code(folder, f"{option} {name}")
    return ModelSource(name, folder, None)


def _parts(index: dict[str, Any], path: Path) -> dict[str, str]:
    """The parts of a pipeline and their classes, as ``model_index.json`` lists them; None for those left out.

    ppdiffusers makes names of files and of modules of all that stands there, so nothing may be a path: a part leads to
    a folder, and its library, like the pipeline's own class, to Python files that are copied and run.
    """
    kind = index.get("_class_name")
    if not isinstance(kind, str) or not kind.isidentifier():
        raise UserError(
            f"{path} holds _class_name={kind!r}, which is not the name of a pipeline; copy the complete model again"
        )
    classes = {}
    for part, value in index.items():
        if part.startswith("_") or not isinstance(value, list) or (value and value[0] is None):
            continue
        named = len(value) == 2 and all(isinstance(word, str) for word in value)
        if not named or not all(word.isidentifier() for word in (part, *value[0].split("."), value[1])):
            raise UserError(
                f"{path} holds {part}={value!r}, which is not a library and a class of it; copy the complete model "
                "again"
            )
        classes[part] = value[1]
    return classes


def _check_part(folder: Path, class_name: str) -> None:
    """One part of a pipeline is there: its folder, its configuration and, where it is a model, its weights."""
    kind = "a ControlNet" if class_name == "ControlNetModel" else "a pipeline"
    if not folder.is_dir() or not any(folder.iterdir()):
        raise UserError(f"{folder} of {kind} ({class_name}) is missing or empty; copy the complete model again")
    if "Tokenizer" in class_name or "Processor" in class_name or "Extractor" in class_name:
        return
    config = "scheduler_config.json" if "Scheduler" in class_name else "config.json"
    if not (folder / config).is_file():
        raise UserError(f"{folder / config} of {kind} ({class_name}) is missing; copy the complete model again")
    if "Scheduler" not in class_name and not _has(folder, *_PADDLE_WEIGHTS, *_TORCH_WEIGHTS, *_TEXT_WEIGHTS):
        raise UserError(f"{folder} of {kind} ({class_name}) holds no weights; copy the complete model again")


def _is_torch(folder: Path) -> bool:
    """True when a model's weights are diffusers' (PyTorch's); ppdiffusers' own are preferred where both are."""
    return _has(folder, *_TORCH_WEIGHTS) and not _has(folder, *_PADDLE_WEIGHTS)


def _has(folder: Path, *patterns: str) -> bool:
    return any(path.is_file() and path.stat().st_size for pattern in patterns for path in folder.glob(pattern))
