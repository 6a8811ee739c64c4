"""Files of a model's folder. Imports no Paddle."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PICKLED = (".pdparams", ".bin", ".ckpt", ".pt", ".pth", ".pkl")
_WEIGHTS = (".safetensors", *_PICKLED)
_LIBRARIES = ("ppdiffusers", "paddlenlp", "diffusers", "diffusers_paddle", "transformers")


def is_torch(folder: Path) -> bool:
    """Return whether all weights are diffusers' (PyTorch's), none ppdiffusers'."""
    names = " ".join(path.name for path in _list_files(folder))
    return "diffusion_pytorch_model" in names and "diffusion_paddle_model" not in names


def list_pickles(folder: Path) -> list[str]:
    """List the pickled weights that ppdiffusers reads."""
    own_name = "diffusion_pytorch_model" if is_torch(folder) else "diffusion_paddle_model"

    def reads_pickles(part: Path) -> bool:
        config = part / "config.json"
        is_own = config.is_file() and b'"_class_name"' in config.read_bytes()
        name = own_name if is_own else "model"  # of paddlenlp's text encoders
        # These come before a pickle, which comes before a variant such as fp16.
        return not any((part / f"{name}.safetensors{end}").is_file() for end in ("", ".index.json"))

    pickles = [path for path in _list_files(folder) if path.suffix in _PICKLED and reads_pickles(path.parent)]
    return [str(path.relative_to(folder)) for path in pickles]


def find_code(index: Mapping[str, Any], folder: Path | None, pipelines: Any) -> str | None:
    """Find Python code that loading a pipeline would run.

    It is a file in the folder, of which a hub's model has none, or a module of an unknown library. ``index`` is what
    ``model_index.json`` holds; its parts may also be of a module in ``pipelines``, ppdiffusers' own.
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
    """Return a checksum of sizes and dates of configs and weights."""
    found = hashlib.sha256()
    for path in _list_files(folder):
        if path.suffix in _WEIGHTS or path.stem.endswith(("config", "index")):
            stat = path.stat()
            found.update(f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return found.hexdigest()


def _list_files(folder: Path) -> list[Path]:
    """List a model's files; for a pipeline its index and parts' files."""
    is_pipeline = (folder / "model_index.json").is_file()
    paths = [*folder.glob("model_index.json" if is_pipeline else "*"), *folder.glob("*/*")]
    return sorted(path for path in paths if path.is_file())  # not links to files that are gone
