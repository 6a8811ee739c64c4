"""Files of a model's folder. Imports no Paddle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError

_LFS_POINTER = b"version https://git-lfs"
_SUFFIXES = (".safetensors", ".pdparams", ".bin", ".ckpt")
_VARIANTS = ("fp16", "bf16", "non_ema")


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
    files = [path for path in sorted([*folder.glob("*"), *folder.glob("*/*")]) if path.suffix in _SUFFIXES]
    for path in files:
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                return (
                    f"{path} is a git-lfs pointer, not weights: the folder was cloned without its large files; run "
                    "'git lfs pull' in it, or download the model again"
                )
    for path in files:
        stem, _, variant = path.stem.rpartition(".")
        name = f"{stem}{path.suffix}"
        if variant in _VARIANTS and not any(path.with_name(n).exists() for n in (name, f"{name}.index.json")):
            return (
                f"{path} is of the variant {variant}, without which it does not exist; paddlenlp loads no variants, so "
                f"rename such files without '.{variant}'"
            )
    return None
