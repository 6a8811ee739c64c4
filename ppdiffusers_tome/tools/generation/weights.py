"""Files of a model's folder that loading may open.

Code is refused, and pickles are opened only where no safetensors exist. Imports no Paddle.
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


def list_files(folder: Path) -> Iterator[Path]:
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


def refuse_code(folder: Path, label: str) -> None:
    """Raise a ``UserError`` if a folder, in errors called ``label``, holds code."""
    code = next((path for path in list_files(folder) if path.suffix.lower() in _CODE), None)
    if code is not None:
        raise UserError(
            f"{label} holds code, {code.relative_to(folder)}, which loading a model can run; remove it, or if you "
            "trust it load the pipeline in a program of your own"
        )


def is_pickle(path: Path) -> bool:
    """Return whether a file is a pickle, or an index that may name some."""
    return path.suffix in _PICKLES or (path.suffix == ".json" and ".index" in path.name and not _is_safe(path))


def find_weights(folder: Path, torch: bool, *, transformers: bool = False) -> Weights:
    """Find the weights of a part: safetensors before pickles, full precision before half.

    Args:
        folder: of the part.
        torch: True for PyTorch's weights.
        transformers: True for a model of transformers, such as a text encoder.

    Raises:
        UserError: pickles would be opened although safetensors exist, or a file is no weights.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.stat().st_size > 0]
    files = [path for path in files if _is_safe(path) or is_pickle(path)]
    for path in files:
        _refuse_pointer(path)
    names = _TRANSFORMERS_NAMES if transformers else _DIFFUSERS_NAMES[torch]
    stems = {path: _SHARD.sub("", path.name).split(".")[0] for path in files}
    safe = [path for path in files if _is_safe(path) and stems[path] == names[0]]
    pickles = tuple(path for path in files if is_pickle(path))
    if not safe and pickles and len(pickles) < len(files):
        raise UserError(
            f"{folder} holds safetensors, but {pickles[0].name} would be loaded instead, and pickles can run any code; "
            "remove whichever you do not mean"
        )
    for path in safe:
        if path.suffix == ".json":
            _check_index(path)
    variant = min(map(_get_variant, safe), default="")
    return Weights(bool(safe or {stems[path] for path in pickles} & {*names}), () if safe else pickles, variant or None)


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


def _is_safe(path: Path) -> bool:
    return ".safetensors" in path.suffixes and path.suffix in (".safetensors", ".json")


def _get_variant(path: Path) -> str:
    """Return the variant in a file's name, such as ``fp16``, or nothing."""
    parts = _SHARD.sub("", path.name).split(".")[1:]
    return ".".join(part for part in parts if part not in ("safetensors", "index", "json"))


def _refuse_pointer(path: Path) -> None:
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
