"""Files of a model's folder. Imports no Paddle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError

_LFS_POINTER = b"version https://git-lfs"


def read_json(path: Path) -> dict[str, Any]:
    """Read the settings in a file of a model."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); copy the complete model again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold the settings of a pipeline; copy the complete model again")
    return content


def is_torch(folder: Path) -> bool:
    """Return True where weights are diffusers' (PyTorch's); ppdiffusers' safetensors are preferred."""
    return any(folder.glob("diffusion_pytorch_model*")) and not any(folder.glob("diffusion_paddle_model*"))


def explain_weights(folder: Path) -> str | None:
    """Explain weights in a model's folder that cannot be loaded."""
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")]):
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                return (
                    f"{path} is a git-lfs pointer, not weights: the folder was cloned without its large files; run "
                    "'git lfs pull' in it, or download the model again"
                )
        stem, _, variant = path.stem.rpartition(".")
        if stem and not path.with_name(f"{stem}.safetensors").exists():
            return (
                f"{path} is of the variant {variant}, without which it does not exist; paddlenlp loads no variants, so "
                f"rename such files without '.{variant}'"
            )
    return None
