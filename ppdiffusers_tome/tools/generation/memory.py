"""The least memory that an image takes, computed before anything is loaded.

It counts the few tensors that must exist together; more is needed in fact, so an image that does not fit by this count
would end in a raw error after minutes, or with the system killing the process. Imports no Paddle.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation.class_labels import compute_vae_scale
from ppdiffusers_tome.tools.measure.memory import get_free_memory
from ppdiffusers_tome.tools.measure.system import find_version

_BYTES = 4  # of a float32, the only dtype on a CPU
_VAE, _UNET = "the attention of the VAE", "the attention of the UNet"


def check_memory(
    folder: Path | None, tome: ToMeConfig, height: int | None, width: int | None, *, rows: int = 2,
    cpu_kernels: bool = False,
) -> None:  # fmt: skip
    """Refuse an image that cannot fit.

    Nothing is known of a hub's pipeline, which has no folder, and the model's native size is assumed to fit. The rows
    are those of the UNet's batch, two for each image with guidance.
    """
    sizes = {"height": height, "width": width}
    names = " and ".join(f"{name} {pixels}" for name, pixels in sizes.items() if pixels is not None)
    if folder is None or not names:
        return
    free = get_free_bytes()
    try:
        needs = _compute_needs(folder, tome, height, width, rows)
    except (KeyError, TypeError, ValueError, OSError):  # of an odd config, on which loading has its say
        return
    for part, size in needs.items():
        has_scores = part in (_VAE, _UNET)
        if size > free and not (has_scores and cpu_kernels):
            remedy = ", or give --cpu-kernels" if has_scores else ""
            raise UserError(
                f"{names}: {part} alone takes at least {size / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB "
                f"are free; choose a smaller image{remedy}"
            )


def _compute_needs(folder: Path, tome: ToMeConfig, height: int | None, width: int | None, rows: int) -> dict[str, int]:
    """Compute the bytes that parts of the work need; see ``check_memory``."""
    vae, unet = _read_config(folder, "vae"), _read_config(folder, "unet")
    if "block_out_channels" not in vae or find_version("paddlepaddle-gpu") is not None:
        return {}  # all may be in the memory of a GPU
    scale, native = compute_vae_scale(vae), unet.get("sample_size", 0)
    latent_height, latent_width = ((pixels // scale) if pixels else native for pixels in (height, width))
    latent = latent_height * latent_width
    # An image of channels, and what the next layer makes of it.
    needs = {"the VAE": 2 * _BYTES * vae["block_out_channels"][0] * latent * scale**2}
    if vae.get("mid_block_add_attention", True):
        needs[_VAE] = 2 * _BYTES * latent**2
    finest = next((level for level, block in enumerate(unet.get("down_block_types", ())) if "CrossAttn" in block), None)
    if finest is not None and not unet.get("only_cross_attention"):
        heads = unet.get("num_attention_heads") or unet["attention_head_dim"]
        heads = heads[min(finest, len(heads) - 1)] if isinstance(heads, list) else heads
        tokens = -(-latent_height // 2**finest) * -(-latent_width // 2**finest)
        remaining = tokens - int(tokens * tome.highest_ratio)
        queries = tokens if METHODS[tome.method].keeps_queries else remaining
        # Models that were distilled with their guidance are called without the second half. Scores and their softmax:
        rows = 1 if unet.get("time_cond_proj_dim") else rows
        needs[_UNET] = 2 * _BYTES * rows * heads * remaining * queries
    return needs


def get_free_bytes() -> int:
    """Return free memory and swap."""
    import psutil

    return get_free_memory() + psutil.swap_memory().free


@lru_cache(maxsize=16)
def _read_config(folder: Path, part: str) -> dict[str, Any]:
    """Read the config of a part of a pipeline, if any."""
    path = folder / part / "config.json"
    return json.loads(path.read_bytes()) if path.is_file() else {}
