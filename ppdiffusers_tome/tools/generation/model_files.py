"""Files of a model: whether they can be loaded, run code, or changed.

Imports no Paddle.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LFS_POINTER = b"version https://git-lfs"
_SUFFIXES = (".safetensors", ".pdparams", ".bin", ".ckpt")
_PICKLED = (".pdparams", ".bin", ".ckpt", ".pt", ".pth", ".pkl")
_LIBRARIES = ("ppdiffusers", "paddlenlp", "diffusers", "diffusers_paddle", "transformers")


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
