"""What loading a model's folder would run: no Python files, and pickles only where there is nothing else.

Knows no Paddle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError

_PICKLES = ("*.pdparams", "*.bin", "*.pt", "*.pth", "*.ckpt")
# ppdiffusers runs Python files that a folder holds; the others can be imported where it is the working directory.
_CODE = (".py", ".pyc", ".so", ".pyd")


def refuse_code(folder: Path, given: str) -> None:
    """Make sure that a folder holds no code that loading it could run; ``given`` is how the user called it.

    Raises:
        UserError: it does.
    """
    code = next((path for path in _files(folder) if path.suffix.lower() in _CODE), None)
    if code is not None:
        raise UserError(
            f"{given} holds code, {code.relative_to(folder)}, which loading a model can run; remove it, or if you "
            "trust it load the pipeline in a program of your own"
        )


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder, also behind links to other folders, as whoever opens them follows those."""
    seen = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        here = os.path.realpath(name)
        if here in seen:  # a link to a folder that it is in
            folders.clear()
            continue
        seen.add(here)
        folders.sort()
        yield from (Path(name, file) for file in sorted(files))


def pickles_of(folder: Path, torch: bool) -> list[Path]:
    """The weights of a part that ppdiffusers opens as pickles.

    Of several kinds it takes an index of safetensors, an index of pickles, safetensors, pickles, in that order; of
    those in half precision alone, last.

    Raises:
        UserError: there are safetensors, and pickles would be opened all the same.
    """
    indices = {path: _shards(path) for path in sorted(folder.glob("*.index*.json"))}
    for path, shards in indices.items():
        stray = next((shard for shard in shards if not _is_beside(shard)), None)
        if ".safetensors." in path.name and stray is not None:
            raise UserError(
                f"{path} names {stray!r}, which is not a safetensors file next to it; copy the complete model again"
            )
    pickles = sorted(path for pattern in _PICKLES for path in folder.glob(pattern))
    by_index = any(".safetensors." in path.name for path in indices)
    plain = "diffusion_pytorch_model" if torch else "diffusion_paddle_model"
    alone = not indices and any((folder / f"{name}.safetensors").is_file() for name in (plain, "model"))
    if by_index or alone or not (pickles or indices):
        return []
    if any(folder.glob("*.safetensors")):
        first = next(iter(indices), pickles[0] if pickles else folder)
        raise UserError(
            f"{folder} holds safetensors, but {first.name} would be loaded instead, and pickles can run any code; "
            "remove whichever you do not mean"
        )
    return pickles or list(indices)


def _shards(index: Path) -> list[str]:
    """The files that the index of a model in several files names."""
    shards = read_json(index).get("weight_map", {})
    return [str(shard) for shard in shards.values()] if isinstance(shards, dict) else []


def _is_beside(shard: str) -> bool:
    """Whether a file that an index names is one of safetensors in the folder of the index."""
    return shard.endswith(".safetensors") and Path(shard).name == shard


def read_json(path: Path) -> dict[str, Any]:
    """The settings in a file of a model.

    Raises:
        UserError: there are none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); copy the complete model again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold the settings of a pipeline; copy the complete model again")
    return content
