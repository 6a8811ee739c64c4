"""The least memory that an image takes, computed before anything is loaded.

It counts the few tensors that must exist together; more is needed in fact, so an image that does not fit by this count
would end in a raw error after minutes, or with the system killing the process. Imports no Paddle.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.requirements import installed_version
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation.weights import read_json
from ppdiffusers_tome.tools.measure.memory import get_free_memory

_BYTES = 4  # of a float32, the only dtype on a CPU
_UNET = "the attention of the UNet"


def check_memory(
    folder: Path | None, tome: ToMeConfig, height: int | None, width: int | None, *, rows: int = 2,
    chunked_attention: bool | None = False, prefix: str = "--",
) -> None:  # fmt: skip
    """Refuse an image that cannot fit.

    Args:
        folder: of the pipeline; None for a hub's, of which little is known.
        tome: settings of token merging.
        height, width: in pixels; None for the model's native size, which is assumed to fit.
        rows: of the UNet's batch, two for each image with guidance.
        chunked_attention: True if the UNet's attention is computed a few queries at a time; None if it cannot be.
        prefix: precedes the names of height and width in the error.

    Raises:
        UserError: it takes more memory than exists.
    """
    given = {"height": height, "width": width}
    names = " and ".join(f"{prefix}{name} {pixels}" for name, pixels in given.items() if pixels is not None)
    free = get_free_bytes()
    if free is None or not names:
        return
    unet = _read_config(folder, "unet")
    native = unet.get("sample_size")
    native = native * _get_scale(folder) if isinstance(native, int) else 0
    needs = compute_needs(folder, tome, height or native, width or native, rows)
    if chunked_attention:
        needs.pop(_UNET, None)
    part = max(needs, key=lambda part: needs[part])
    if needs[part] > free:
        fits_otherwise = all(size <= free for part, size in needs.items() if part != _UNET)
        remedy = ", or give --chunked-attention" if fits_otherwise and chunked_attention is not None else ""
        raise UserError(
            f"{names}: {part} alone takes at least {needs[part] / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} "
            f"GiB are free; choose a smaller image{remedy}"
        )


def compute_needs(folder: Path | None, tome: ToMeConfig, height: int, width: int, rows: int) -> dict[str, int]:
    """Compute the bytes that parts of the work need at once; see ``check_memory``."""
    needs = {"the image": 3 * _BYTES * height * width}
    if installed_version("paddlepaddle-gpu") is not None:
        return needs  # the rest may be in the memory of a GPU
    vae, scale = _read_config(folder, "vae"), _get_scale(folder)
    channels = _get_numbers(vae, "block_out_channels")
    if channels:
        # At full size: the input of the decoder's last block, and its norm.
        needs["decoding"] = 2 * max(channels[:2]) * _BYTES * height * width
        if vae.get("mid_block_add_attention", True):
            needs["the attention of the VAE"] = 2 * _BYTES * ((height // scale) * (width // scale)) ** 2
    unet = _read_config(folder, "unet")
    # Models that were distilled with their guidance are called without the second half. Scores and their softmax:
    rows = 1 if unet.get("time_cond_proj_dim") else rows
    needs[_UNET] = 2 * _BYTES * rows * _count_scores(unet, tome, height // scale, width // scale)
    return needs


def get_free_bytes() -> int | None:
    """Return the bytes of free memory and swap; None where swap grows as needed."""
    import psutil

    return get_free_memory() + psutil.swap_memory().free if sys.platform == "linux" else None


def _count_scores(unet: dict[str, Any], tome: ToMeConfig, height: int, width: int) -> int:
    """Count the attention scores of one row at the finest level, merged most."""
    blocks = unet.get("down_block_types")
    heads = _get_numbers(unet, "num_attention_heads") or _get_numbers(unet, "attention_head_dim")
    if not isinstance(blocks, list) or not heads or unet.get("only_cross_attention"):
        return 0
    finest = next((number for number, block in enumerate(blocks) if "CrossAttn" in str(block)), None)
    if finest is None:
        return 0
    level = 2**finest
    tokens = -(-height // level) * -(-width // level)
    remaining = tokens - int(tokens * tome.highest_ratio(level))
    queries = tokens if METHODS[tome.method].keeps_queries else remaining
    return heads[min(finest, len(heads) - 1)] * remaining * queries


def _get_scale(folder: Path | None) -> int:
    """Return how many times smaller than the image the VAE's latent is."""
    return 2 ** (len(_get_numbers(_read_config(folder, "vae"), "block_out_channels") or [0] * 4) - 1)


def _get_numbers(config: dict[str, Any], name: str) -> list[int]:
    """Return a setting as a list of numbers, empty where it is none."""
    values = config.get(name)
    values = values if isinstance(values, list) else [values]
    return values if all(isinstance(value, int) and value > 0 for value in values) else []


@lru_cache(maxsize=16)
def _read_config(folder: Path | None, part: str) -> dict[str, Any]:
    """Read the settings of a part of a pipeline; empty where they are unknown."""
    path = None if folder is None else folder / part / "config.json"
    return {} if path is None or not path.is_file() else read_json(path)
