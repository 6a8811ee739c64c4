"""The bundled models: a small Stable Diffusion, its ControlNet, a diffusion transformer."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError

MODEL, CONTROLNET, DIT = (Path(__file__).parent / name for name in ("model", "controlnet", "dit"))
PROMPTS = ("a photo of an astronaut", "a photo of a cat", "a photo of a cup of coffee")  # the commands' default
SUMS = "SHA256SUMS"


def load_dit(**keywords: Any) -> Any:
    """Load the bundled DiTPipeline, with keywords of ``from_pretrained``."""
    from ppdiffusers import AutoencoderKL, DiTPipeline

    # It is stored once.
    vae = AutoencoderKL.from_pretrained(str(MODEL / "vae"), **keywords)
    return DiTPipeline.from_pretrained(str(DIT), vae=vae, **keywords)


@lru_cache(maxsize=8)
def check_sums(folder: Path) -> None:
    """Compare every file of a bundled model with ``SHA256SUMS``, once per process.

    This finds a download that was cut off, a failing disk and a stray file, not an attacker who can write there.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        digests = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise _make_error(folder / SUMS, f"cannot be read ({error})") from error
    stored = {path.relative_to(folder).as_posix(): path for path in folder.rglob("[!.]*") if path.is_file()}
    for name in sorted((stored.keys() ^ digests.keys()) - {SUMS}):
        raise _make_error(folder / name, "does not belong there" if name in stored else "is missing")
    for name, digest in digests.items():
        if hashlib.sha256(stored[name].read_bytes()).hexdigest() != digest:
            raise _make_error(stored[name], f"is damaged: its SHA-256 is not the one in {SUMS}")


def _make_error(path: Path, fault: str) -> UserError:
    return UserError(
        f"{path} of the bundled model {fault}; install the package again: "
        "pip install --force-reinstall --no-deps ppdiffusers-tome"
    )
