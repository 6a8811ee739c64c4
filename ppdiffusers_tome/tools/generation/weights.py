"""The files of a model's folder that loading would open.

Code is refused, and pickles are opened only where nothing else exists. Imports no Paddle.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError

# Names of files, without what follows the first dot, of models of diffusers and of transformers (paddlenlp).
# The first of each are those of safetensors.
_DIFFUSERS_NAMES = {True: ("diffusion_pytorch_model",), False: ("diffusion_paddle_model", "model_state")}
_TRANSFORMERS_NAMES = ("model", "model_state", "pytorch_model")
_SHARD = re.compile(r"-\d+-of-\d+")
_PICKLES = (".pdparams", ".bin", ".pt", ".pth", ".ckpt")
# ppdiffusers runs Python files of a folder; the others can be imported where the folder is the working directory.
_CODE = (".py", ".pyc", ".so", ".pyd")
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Weights:
    """The weights of a part that loading opens.

    Attributes:
        exist: False where loading would find none.
        pickles: those that are pickles; empty where safetensors are loaded.
        variant: of weights that exist in no other, such as ``fp16``.
    """

    exist: bool = False
    pickles: tuple[Path, ...] = ()
    variant: str | None = None


def refuse_code(folder: Path, label: str) -> None:
    """Check that a folder, in errors called ``label``, holds no code.

    Raises:
        UserError: it does.
    """
    code = next((path for path in _list_files(folder) if path.suffix.lower() in _CODE), None)
    if code is not None:
        raise UserError(
            f"{label} holds code, {code.relative_to(folder)}, which loading a model can run; remove it, or if you "
            "trust it load the pipeline in a program of your own"
        )


def _list_files(folder: Path) -> Iterator[Path]:
    """List all files below a folder, also behind links."""
    seen = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        real_path = os.path.realpath(name)
        if real_path in seen:  # a link to a folder that contains it
            folders.clear()
            continue
        seen.add(real_path)
        folders.sort()
        yield from (Path(name, file) for file in sorted(files))


def find_weights(folder: Path, torch: bool, *, transformers: bool = False) -> Weights:
    """Find the weights of a part.

    Of several kinds ppdiffusers takes an index of safetensors, an index of pickles, safetensors, pickles, in that
    order. Without a variant to look for, it takes half precision last.

    Args:
        folder: of the part.
        torch: True for PyTorch's weights.
        transformers: True for a model of transformers, such as a text encoder.

    Raises:
        UserError: pickles would be opened although safetensors exist, or a file is no weights.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.stat().st_size > 0]
    pickles = [path for path in files if path.suffix in _PICKLES]
    tensors = [path for path in files if path.suffix == ".safetensors"]
    for path in (*tensors, *pickles):
        _refuse_pointer(path)
    names = _TRANSFORMERS_NAMES if transformers else _DIFFUSERS_NAMES[torch]
    indices = [path for path in files if ".index" in path.name and path.suffix == ".json"]
    loadable = [path for path in (*indices, *tensors, *pickles) if _SHARD.sub("", path.name).split(".")[0] in names]
    variants = sorted({_get_variant(path) for path in loadable}, key=lambda variant: (variant != "", variant))
    opened = [path for path in loadable if _get_variant(path) == variants[0]]
    safe = [path for path in opened if path.name.startswith(f"{names[0]}.") and ".safetensors" in path.name]
    safe_indices = [path for path in safe if path in indices]
    pickle_indices = [path for path in opened if path in indices and path not in safe]
    for index in safe_indices:
        _check_index(index)
    if safe_indices or (not pickle_indices and any(not _SHARD.search(path.name) for path in safe)):
        return Weights(True, (), variants[0] or None)
    if tensors and (pickle_indices or pickles):
        raise UserError(
            f"{folder} holds safetensors, but {(pickle_indices or pickles)[0].name} would be loaded instead, and "
            "pickles can run any code; remove whichever you do not mean"
        )
    return Weights(any(path not in tensors for path in opened), tuple(pickles or pickle_indices))


def _get_variant(path: Path) -> str:
    """Return the variant in a file's name, such as ``fp16``, or nothing."""
    parts = _SHARD.sub("", path.name).split(".")[1:]
    known = ("safetensors", "index", "json", *(suffix[1:] for suffix in _PICKLES))
    return ".".join(part for part in parts if part not in known)


def _refuse_pointer(path: Path) -> None:
    if path.stat().st_size < 1024:
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise UserError(
                    f"{path} is a git-lfs pointer, not weights: the folder was cloned without its large files; run "
                    "'git lfs pull' in it, or download the model again"
                )


def _check_index(index: Path) -> None:
    """Check that an index of safetensors names such files beside it alone."""
    shards = read_json(index).get("weight_map", {})
    for shard in map(str, shards.values() if isinstance(shards, dict) else ()):
        if not shard.endswith(".safetensors") or Path(shard).name != shard or not (index.parent / shard).is_file():
            raise UserError(
                f"{index} names {shard!r}, which is not a safetensors file next to it; copy the complete model again"
            )


def read_json(path: Path) -> dict[str, Any]:
    """Read the settings in a file of a model.

    Raises:
        UserError: it cannot be read, or holds none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); copy the complete model again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold the settings of a pipeline; copy the complete model again")
    return content
