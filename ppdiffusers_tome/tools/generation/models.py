"""Folders, hub names and small models of a clone. Imports no Paddle."""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ppdiffusers_tome
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.generation.model_files import sum_model_files

# Where a clone has small models to try merging with; the name of a folder is enough in commands.
SMALL_MODELS = Path("examples/models")
PHOTOGRAPHS = "photographs"  # the commands' default in a clone

_ANY_PROMPTS = ("a photo of an astronaut", "a photo of a cat", "a photo of a cup of coffee")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelSource:
    """The source of a model, and what its ``demonstration.json`` says, if any."""

    name: str  # as the user called it; images hold ``label``, without private folders
    folder: Path | None = None  # None for a hub's model, which is downloaded
    prompts: tuple[str, ...] = ()  # all that a small model was taught; empty for other models
    steps: int = 20
    guidance_scale: float | None = None  # None for the default of the pipeline's class
    controlnet: str | None = None  # the folder of the one to use without --controlnet
    # Of the folder's files when it was found: another model may take its place. None for a hub's.
    checksum: str | None = field(default=None, compare=False)

    @property
    def default_prompts(self) -> tuple[str, ...]:
        """The prompts of commands that are given none."""
        return self.prompts[:3] or _ANY_PROMPTS

    @property
    def subjects(self) -> tuple[str, ...]:
        """The prompts without the words that all of them begin with."""
        words = [prompt.split() for prompt in self.prompts]
        first = min(len(os.path.commonprefix(words)), *(len(each) - 1 for each in words)) if words else 0
        return tuple(" ".join(each[first:]) for each in words)

    @property
    def label(self) -> str:
        """The name in images: of a folder its last part alone."""
        return self.name if self.folder is None else Path(os.path.abspath(self.folder)).name

    def describe(self) -> dict[str, Any]:
        """Return what tells it from others as plain values."""
        return {"model": self.label, "model_files": self.checksum}


def find_model(name: str | None) -> ModelSource:
    """Find a pipeline; in a clone None is the model of photographs."""
    index = "model_index.json"
    if name is None and not list_small_models():
        raise UserError(f"--model is missing; give a pipeline's folder, a hub name or {describe_small_models(index)}")
    return _find(PHOTOGRAPHS if name is None else name, "--model", "a pipeline's", index)


def find_controlnet(name: str) -> ModelSource:
    """Find a ControlNet."""
    source = _find(name, "--controlnet", "a ControlNet's", "config.json")
    if source.folder is not None:
        with suppress(ValueError, AttributeError):  # a damaged config is refused when it is loaded
            class_name = json.loads((source.folder / "config.json").read_bytes()).get("_class_name")
            if class_name not in (None, "ControlNetModel"):  # whose weights would be missing, so drawn at random
                raise UserError(f"--controlnet {name} holds a {class_name}; give a folder of a ControlNetModel")
    return source


def list_small_models() -> dict[str, Path]:
    """Find the folders of a clone's small models, by name."""
    for root in (Path(ppdiffusers_tome.__file__).parents[1], Path()):  # this package's clone, or the current folder
        if (root / SMALL_MODELS / PHOTOGRAPHS).is_dir():
            return {path.name: path for path in sorted((root / SMALL_MODELS).iterdir()) if path.is_dir()}
    return {}


def _find(name: str, option: str, owner: str, index: str) -> ModelSource:
    """Find a folder that has ``index``, or a hub name."""
    # os.path returns False for names that are no paths, where Path raises: too long, or with a null byte.
    folder = Path(os.path.expanduser(name))
    if not os.path.isfile(folder / index):
        folder = list_small_models().get(name, folder)
    if not os.path.isdir(folder):
        if not os.path.exists(folder) and _HUB_NAME.fullmatch(name):
            return ModelSource(name)
        fault = "is a file" if os.path.exists(folder) else "does not exist"
        raise UserError(f"{option} {name} {fault}; give {owner} folder, a hub name or {describe_small_models(index)}")
    if not (folder / index).is_file():
        raise UserError(f"{option} {name} has no {index}; give {owner} folder, as save_pretrained writes it")
    return ModelSource(name, folder, checksum=sum_model_files(folder), **_read_demonstration(folder))


def describe_small_models(index: str) -> str:
    """Say where there are small models that have ``index``."""
    names = [name for name, folder in list_small_models().items() if (folder / index).is_file()]
    if names:
        return f"a small model of {SMALL_MODELS}: {', '.join(names)}"
    return f"a small model of {SMALL_MODELS} in a clone of ppdiffusers_tome's repository, by its name in commands there"


def _read_demonstration(folder: Path) -> dict[str, Any]:
    """Read the fields of ``ModelSource`` that a folder's ``demonstration.json`` has."""
    path = folder / "demonstration.json"
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else {}
        scale, controlnet = content.get("guidance_scale"), folder / content.get("controlnet", "")
        return {
            "prompts": tuple(content.get("prompts", ())), "steps": int(content.get("steps", ModelSource.steps)),
            "guidance_scale": None if scale is None else float(scale),
            # The model may have been copied without it.
            "controlnet": str(controlnet) if controlnet != folder and controlnet.is_dir() else None,
        }  # fmt: skip
    except (ValueError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f'{path} cannot be used ({reason}); mend it: it is like {{"steps": 20}}') from error
