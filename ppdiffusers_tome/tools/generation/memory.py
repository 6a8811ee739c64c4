"""The least memory that an image takes, computed before anything is loaded.

It counts the few tensors that must exist together; more is needed in fact, so an image that does not fit by this count
would end in a raw error after minutes, or with the system killing the process. Imports no Paddle.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.requirements import installed_version
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation.model_sources import ModelSource
from ppdiffusers_tome.tools.generation.weights import read_json
from ppdiffusers_tome.tools.measure.memory import get_free_memory

_BYTES = 4  # of a float32, the only dtype on a CPU
_UNET = "the attention of the UNet"


@dataclass(frozen=True)
class MemoryNeeds:
    """The settings that the memory of an image depends on, besides its size.

    Attributes:
        model: the pipeline.
        tome: settings of token merging.
        rows: of the UNet's batch, two for each image with guidance.
        chunked_attention: True if the UNet's attention is computed a few queries at a time.
    """

    model: ModelSource
    tome: ToMeConfig
    rows: int = 2
    chunked_attention: bool = False


def check_memory(
    needs: MemoryNeeds, height: int | None, width: int | None, *, prefix: str = "--", can_chunk: bool = True
) -> None:
    """Refuse an image that cannot fit.

    Args:
        needs: what its memory depends on.
        height, width: in pixels; None for the model's native size, which is assumed to fit.
        prefix: precedes the names of both in the error.
        can_chunk: True if ``--chunked-attention`` is an option.

    Raises:
        UserError: it takes more memory than exists.
    """
    free = get_free_bytes()
    if free is None or (height is None and width is None):
        return
    vae, unet = _read_config(needs.model, "vae"), _read_config(needs.model, "unet")
    scale = 2 ** (len(_get_numbers(vae, "block_out_channels") or [0] * 4) - 1)
    native = unet.get("sample_size")
    native = native * scale if isinstance(native, int) else 0
    sizes = {part: size for size, part in _list_needs(needs, vae, unet, scale, height or native, width or native)}
    part = max(sizes, key=lambda part: sizes[part])
    if sizes[part] > free:
        given = {"height": height, "width": width}
        names = " and ".join(f"{prefix}{name} {pixels}" for name, pixels in given.items() if pixels is not None)
        chunking_helps = can_chunk and all(size <= free for part, size in sizes.items() if part != _UNET)
        raise UserError(
            f"{names}: {part} alone takes at least {sizes[part] / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} "
            f"GiB are free; choose a smaller image{', or give --chunked-attention' if chunking_helps else ''}"
        )


def _list_needs(
    needs: MemoryNeeds, vae: dict[str, Any], unet: dict[str, Any], scale: int, height: int, width: int
) -> Iterator[tuple[int, str]]:
    """Yield the bytes that parts of the work need at once, with names."""
    yield 3 * _BYTES * height * width, "the image"
    if installed_version("paddlepaddle-gpu") is not None:
        return  # the rest may be in the memory of a GPU
    channels = _get_numbers(vae, "block_out_channels")
    if channels:
        # At full size: the input of the decoder's last block, and its norm.
        yield 2 * max(channels[:2]) * _BYTES * height * width, "decoding"
        if vae.get("mid_block_add_attention", True):
            yield 2 * _BYTES * ((height // scale) * (width // scale)) ** 2, "the attention of the VAE"
    if not needs.chunked_attention:
        # Models that were distilled with their guidance are called without the second half. Scores and their softmax:
        rows = 1 if unet.get("time_cond_proj_dim") else needs.rows
        yield 2 * _BYTES * rows * _count_scores(unet, needs.tome, height // scale, width // scale), _UNET


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


def get_free_bytes() -> int | None:
    """Return the bytes of free memory and swap; None where swap grows as needed."""
    import psutil

    return get_free_memory() + psutil.swap_memory().free if sys.platform == "linux" else None


def _get_numbers(config: dict[str, Any], name: str) -> list[int]:
    """Return a setting as a list of numbers, empty where it is none."""
    values = config.get(name)
    values = values if isinstance(values, list) else [values]
    return values if all(isinstance(value, int) and value > 0 for value in values) else []


@lru_cache(maxsize=16)
def _read_config(model: ModelSource, part: str) -> dict[str, Any]:
    """Read the settings of a part of a pipeline; empty where they are unknown."""
    path = None if model.folder is None else model.folder / part / "config.json"
    return {} if path is None or not path.is_file() else read_json(path)
