"""Files of a model's folder that loading may open.

Code is refused, and pickles are opened only where no safetensors exist. Imports no Paddle.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError

# Stems of safetensors: of diffusers, of ppdiffusers and of transformers (paddlenlp).
_STEMS = ("diffusion_pytorch_model", "diffusion_paddle_model", "model")
_SHARD = re.compile(r"-\d+-of-\d+")
_PICKLES = (".pdparams", ".bin", ".pt", ".pth", ".ckpt")
# ppdiffusers runs Python files of a folder; the others can be imported where the folder is the working directory.
_CODE = (".py", ".pyc", ".so", ".pyd")
_LFS_POINTER = b"version https://git-lfs"


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


def find_weights(folder: Path) -> tuple[tuple[Path, ...], str]:
    """Find the weights of a part: safetensors before pickles, full precision before half.

    Returns:
        The pickles to open, none where safetensors are loaded; and the variant of safetensors that exist in no other,
        such as ``fp16``, or nothing.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []
    files = [path for path in files if _is_safe(path) or is_pickle(path)]
    for path in files:
        _refuse_pointer(path)
    safe = [path for path in files if _is_safe(path) and _SHARD.sub("", path.name).split(".")[0] in _STEMS]
    pickles = tuple(path for path in files if is_pickle(path))
    if not safe and pickles and len(pickles) < len(files):
        raise UserError(
            f"{folder} holds safetensors, but {pickles[0].name} would be loaded instead, and pickles can run any code; "
            "remove whichever you do not mean"
        )
    for path in safe:
        if path.suffix == ".json":
            _check_index(path)
    return () if safe else pickles, min(map(_get_variant, safe), default="")


def read_json(path: Path) -> dict[str, Any]:
    """Read the settings in a file of a model."""
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
