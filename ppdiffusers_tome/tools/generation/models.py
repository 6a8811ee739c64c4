"""Sources of models: folders, hub names, a clone's small models.

Imports no Paddle.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ppdiffusers_tome
from ppdiffusers_tome.errors import UserError

# Where a clone has small models to try merging with; the name of a folder is enough in commands.
SMALL_MODELS = Path("examples/models")
PHOTOGRAPHS = "photographs"  # the commands' default in a clone

_ANY_PROMPTS = ("a photo of an astronaut", "a photo of a cat", "a photo of a cup of coffee")
_DEMONSTRATED = ("prompts", "steps", "guidance_scale", "controlnet")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_LFS_POINTER = b"version https://git-lfs"
_SUFFIXES = (".safetensors", ".pdparams", ".bin", ".ckpt")
_PICKLED = (".pdparams", ".bin", ".ckpt", ".pt", ".pth", ".pkl")
_LIBRARIES = ("ppdiffusers", "paddlenlp", "diffusers", "diffusers_paddle", "transformers")


@dataclass(frozen=True)
class ModelSource:
    """The source of a model, and what its ``demonstration.json`` says, if any."""

    name: str  # as the user called it; ``label`` is for what others may see
    folder: Path | None = None  # None for a hub's model, which is downloaded
    prompts: tuple[str, ...] = ()  # all that a small model was taught; the others have no such list
    steps: int = 20
    guidance_scale: float | None = None  # None for the default of the pipeline's class
    controlnet: str | None = None  # its folder, where edges come without --controlnet
    # Of its files when it was found, as others may have its name, or be saved into its folder; None for a hub's.
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
        with suppress(ValueError, AttributeError):  # of a damaged config, on which loading has its say
            kind = json.loads((source.folder / "config.json").read_bytes()).get("_class_name")
            if kind not in (None, "ControlNetModel"):  # of which ppdiffusers would draw the weights that a folder lacks
                raise UserError(f"--controlnet {name} holds a {kind}; give a folder of a ControlNetModel")
    return source


def list_small_models() -> dict[str, Path]:
    """List the small models of this clone, or the current one, by name."""
    for root in (Path(ppdiffusers_tome.__file__).parents[1], Path()):
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
    if not path.is_file():
        return {}
    content = json.loads(path.read_bytes())
    found = {name: content[name] for name in _DEMONSTRATED if name in content}
    controlnet = folder / found.pop("controlnet", "")
    if controlnet != folder and controlnet.is_dir():  # the model may have been copied without it
        found["controlnet"] = str(controlnet)
    return found | {"prompts": tuple(found.get("prompts", ()))}


def is_torch(folder: Path) -> bool:
    """Return True where weights are diffusers' (PyTorch's); ppdiffusers' safetensors are preferred."""
    names = " ".join(path.name for path in _list_files(folder))
    return "diffusion_pytorch_model" in names and "diffusion_paddle_model" not in names


def explain_weights(folder: Path) -> str | None:
    """Explain weights in a model's folder that cannot be loaded."""
    for path in (path for path in _list_files(folder) if path.suffix in _SUFFIXES):
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                return (
                    f"{path} is a git-lfs pointer, not weights: the folder was cloned without its large files; run "
                    "'git lfs pull' in it, or download the model again"
                )
    for path in (path for path in _list_files(folder) if path.name.count(".") == 2 and path.suffix == ".safetensors"):
        plain = path.with_name(f"{path.name.split('.')[0]}{path.suffix}")
        if not plain.exists():
            return f"{path} is a variant's, without the usual weights beside it; rename it to {plain.name}"
    return None


def list_pickles(folder: Path) -> list[str]:
    """List the pickled weights that ppdiffusers reads."""
    safe = "diffusion_pytorch_model" if is_torch(folder) else "diffusion_paddle_model"
    files = _list_files(folder)
    own = {path.parent for path in files if path.name == "config.json" and b'"_class_name"' in path.read_bytes()}

    def has_safe(part: Path) -> bool:
        stem = safe if part in own else "model"  # of a text encoder
        # A pickle comes before a variant such as fp16.
        return any((part / f"{stem}.safetensors{end}").is_file() for end in ("", ".index.json"))

    pickles = [path for path in files if path.suffix in _PICKLED and not has_safe(path.parent)]
    return [str(path.relative_to(folder)) for path in pickles]


def find_code(index: Mapping[str, Any], folder: Path | None, pipelines: Any) -> str | None:
    """Find Python code that loading a pipeline would run.

    It is a file of the folder, which a hub's has not, or a module of none of the ``pipelines`` of ppdiffusers.
    """
    if folder is not None and (folder / "None.py").is_file():
        return "None.py"  # which ppdiffusers 0.29 takes for a pipeline's code
    for part, value in index.items():
        if not isinstance(value, list | tuple) or not value or not isinstance(value[0], str):
            continue
        library = value[0]
        if part == "_class_name":
            return f"{library}.py"
        # By these names ppdiffusers knows them, and in a part's folder a file of that name comes first.
        for name in (library, "ppdiffusers", "ppdiffusers.transformers"):
            if folder is not None and (folder / part / f"{name}.py").is_file():
                return f"{part}/{name}.py"
        if library.split(".")[0] not in _LIBRARIES and not hasattr(pipelines, library):
            return f"the module {library}"
    return None


def sum_model_files(folder: Path) -> str:
    """Return a checksum of the sizes and dates of a model's configs and weights."""
    suffixes, found = {*_SUFFIXES, *_PICKLED}, hashlib.sha256()
    for path in _list_files(folder):
        if path.suffix in suffixes or path.stem.endswith(("config", "index")):
            stat = path.stat()
            found.update(f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return found.hexdigest()


def _list_files(folder: Path) -> list[Path]:
    """List a model's files; for a pipeline its index and parts' files."""
    is_pipeline = (folder / "model_index.json").is_file()
    return sorted([*folder.glob("model_index.json" if is_pipeline else "*"), *folder.glob("*/*")])
