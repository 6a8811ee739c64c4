"""Files of a model's folder. Imports no Paddle."""

from __future__ import annotations

from pathlib import Path

_LFS_POINTER = b"version https://git-lfs"
_SUFFIXES = (".safetensors", ".pdparams", ".bin", ".ckpt")
_VARIANTS = ("fp16", "bf16", "non_ema")


def is_torch(folder: Path) -> bool:
    """Return True where weights are diffusers' (PyTorch's); ppdiffusers' safetensors are preferred."""
    names = " ".join(path.name for path in _list_files(folder))
    return "diffusion_pytorch_model" in names and "diffusion_paddle_model" not in names


def explain_weights(folder: Path) -> str | None:
    """Explain weights in a model's folder that cannot be loaded."""
    files = [path for path in _list_files(folder) if path.suffix in _SUFFIXES]
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


def _list_files(folder: Path) -> list[Path]:
    """List the files of a model and of the parts of a pipeline."""
    return sorted([*folder.glob("*"), *folder.glob("*/*")])
