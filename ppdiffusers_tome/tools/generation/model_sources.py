"""Sources of models: the bundled ones, folders and hub names.

Imports no Paddle, so that a wrong name or a missing part is reported at once, before a file of the folder is loaded.
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
from ppdiffusers_tome.tools.generation.weights import Weights, find_weights, read_json, refuse_code

BUNDLED, BUNDLED_DIT = "bundled", "bundled-dit"

_DENOISERS = ("unet", "transformer", "prior", "decoder")  # the format of their weights is that of all
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NO_WEIGHTS = ("Tokenizer", "Processor", "Extractor", "Scheduler")  # in names of classes
_FILES = {
    "CLIPTokenizer": ("vocab.json", "merges.txt"), "T5Tokenizer": ("spiece.model",), "BertTokenizer": ("vocab.txt",),
}  # fmt: skip


@dataclass(frozen=True)
class ModelSource:
    """The source of a model.

    Attributes:
        name: as the user called it.
        folder: its folder; None for a hub's model, which is downloaded.
        from_diffusers: True for PyTorch's weights; None leaves it to ppdiffusers (``FROM_DIFFUSERS``).
        bundled: True for a model of this package.
        labels: its classes, for a DiTPipeline in a folder.
        pickles: weights that are pickles, which can run any code when they are loaded.
        variants: by part, the variant of weights that exist in no other, such as ``fp16``.
        vae: the folder of its VAE where that is not inside its own folder.
    """

    name: str
    folder: Path | None
    from_diffusers: bool | None
    bundled: bool = False
    labels: ClassLabels | None = field(default=None, hash=False)
    pickles: tuple[Path, ...] = ()
    variants: Mapping[str, str] = field(default_factory=dict, hash=False)
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
        any_kind: accept pipelines that cannot generate from a prompt, too.
        class_labels: accept a DiTPipeline, too, whose source then has ``labels``.

    Raises:
        UserError: the folder does not exist, lacks a part that loading needs, or holds code that loading would run.
    """
    source = _find(name, "--model", {BUNDLED: MODEL, BUNDLED_DIT: DIT}, "a pipeline's", "model_index.json")
    if source.folder is None:
        return source
    index = read_json(source.folder / "model_index.json")
    parts = _read_parts(index, source.folder / "model_index.json")
    if str(index["_class_name"]).startswith("PaddleInfer"):
        raise UserError(
            f"--model {name} is an exported {index['_class_name']}, whose settings are fixed; load it in Python with "
            f"ppdiffusers_tome.export.pipelines.load_exported({name!r}), or give the model that was exported"
        )
    has_labels = class_labels and index["_class_name"] == PIPELINE
    if not any_kind and not has_labels and not {"unet", "vae"} <= parts.keys():
        raise make_unsupported_error(name, index["_class_name"])
    denoiser = next((part for part in _DENOISERS if part in parts), next(iter(parts), ""))
    torch = _is_torch(source.folder / denoiser)
    folders = {part: source.folder / part for part in parts}
    if source.vae is not None:
        folders["vae"] = source.vae
    weights = {part: _check_part(folders[part], *names, torch) for part, names in parts.items()}
    return replace(
        source, from_diffusers=torch, pickles=tuple(path for found in weights.values() for path in found.pickles),
        variants={part: found.variant for part, found in weights.items() if found.variant is not None},
        labels=ClassLabels.from_folder(source.folder, only_named=source.bundled) if has_labels else None,
    )  # fmt: skip


def find_controlnet(name: str) -> ModelSource:
    """Find a ControlNet: ``bundled``, a folder, or a hub name such as ``lllyasviel/sd-controlnet-canny``.

    Raises:
        UserError: as ``find_model``.
    """
    source = _find(name, "--controlnet", {BUNDLED: CONTROLNET}, "a ControlNet's", "config.json")
    if source.folder is None:
        return source
    torch = _is_torch(source.folder)
    weights = _check_part(source.folder, "ppdiffusers", "ControlNetModel", torch)
    return replace(source, from_diffusers=torch, pickles=weights.pickles)


def make_unsupported_error(name: str, class_name: object) -> UserError:
    """Make the error for a pipeline that cannot generate from a prompt."""
    return UserError(
        f"--model {name} is a {class_name} without a unet and a vae; give a text-to-image pipeline such as Stable "
        "Diffusion"
    )


def _find(name: str, option: str, bundled: Mapping[str, Path], owner: str, index: str) -> ModelSource:
    """Find the folder, which has the file ``index``, or the hub name of an option."""
    accepted = f"a hub name or {' or '.join(map(repr, bundled))}"
    # os.path returns False for names that are no paths, where Path raises: too long, or with a null byte.
    folder = Path(os.path.expanduser(bundled.get(name, Path(name))))
    if not os.path.isdir(folder):
        if os.path.exists(folder):
            raise UserError(f"{option} {name} is a file; give {owner} folder, {accepted}")
        if name in bundled:
            raise UserError(f"{option} {name}: {folder} is missing; install the package again")
        if _HUB_NAME.fullmatch(name):
            return ModelSource(name, None, None)
        raise UserError(f"{option} {name} does not exist; give {owner} folder, {accepted}")
    if folder.resolve() in [path.resolve() for path in bundled.values()]:
        vae = MODEL / "vae" if folder.resolve() == DIT.resolve() else None
        for checked in (folder,) if vae is None else (folder, MODEL):
            check_sums(checked)
        return ModelSource(name, folder, None, bundled=True, vae=vae)
    if not (folder / index).is_file():
        raise UserError(f"{option} {name} has no {index}; give {owner} folder, as save_pretrained writes it")
    refuse_code(folder, f"{option} {name}")
    return ModelSource(name, folder, None)


def _read_parts(index: dict[str, Any], path: Path) -> dict[str, tuple[str, str]]:
    """Read the library and class of every part in a pipeline's ``model_index.json``.

    ppdiffusers makes paths of files and modules of these names, so none may be a path: a part leads to a folder; its
    library, like the pipeline's own class, leads to Python files that are copied and run.
    """
    pipeline = index.get("_class_name")
    if not isinstance(pipeline, str) or not pipeline.isidentifier():
        raise UserError(
            f"{path} holds _class_name={pipeline!r}, which is not the name of a pipeline; copy the complete model again"
        )
    classes = {}
    for part, value in index.items():
        if part.startswith("_") or not isinstance(value, list) or (value and value[0] is None):
            continue
        is_pair = len(value) == 2 and all(isinstance(word, str) for word in value)
        if not is_pair or not all(word.isidentifier() for word in (part, *value[0].split("."), value[1])):
            raise UserError(
                f"{path} holds {part}={value!r}, which is not a library and a class of it; copy the complete model "
                "again"
            )
        classes[part] = (value[0], value[1])
    return classes


def _check_part(folder: Path, library: str, class_name: str, torch: bool) -> Weights:
    """Check that a part has the files that loading needs."""
    kind = "a ControlNet" if class_name == "ControlNetModel" else "a pipeline"
    if not folder.is_dir() or not any(folder.iterdir()):
        raise UserError(f"{folder} of {kind} ({class_name}) is missing or empty; copy the complete model again")
    has_weights = not any(word in class_name for word in _NO_WEIGHTS)
    config = "scheduler_config.json" if "Scheduler" in class_name else "config.json" if has_weights else None
    for file in _FILES.get(class_name, (config,) if config else ()):
        if not (folder / file).is_file():
            raise UserError(f"{folder / file} of {kind} ({class_name}) is missing; copy the complete model again")
    if not has_weights:
        return Weights()
    weights = find_weights(folder, torch, transformers=library not in ("ppdiffusers", "diffusers"))
    if not weights.exist:
        raise UserError(f"{folder} of {kind} ({class_name}) holds no weights; copy the complete model again")
    return weights


def _is_torch(folder: Path) -> bool:
    """Return True where weights are diffusers' (PyTorch's) alone; ppdiffusers' own are preferred."""
    return any(folder.glob("diffusion_pytorch_model*")) and not any(
        path for pattern in ("diffusion_paddle_model*", "model_state*.pdparams*") for path in folder.glob(pattern)
    )
