"""The memory that a picture takes at the least, told by its size before anything is loaded. Knows no Paddle.

It counts the few tensors that must be there together, so more is needed in fact: what does not fit by this count never
will, and waiting for it would end in a raw error after minutes, or with the system killing the process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.versions import installed_version
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation.model_sources import ModelSource
from ppdiffusers_tome.tools.generation.safety_checks import read_json
from ppdiffusers_tome.tools.measure.memory import get_free_memory

_BYTES = 4  # of a float32, which is all that a CPU computes
_UNET = "the attention of the UNet"


@dataclass(frozen=True)
class MemoryNeeds:
    """What the memory of a picture depends on besides its size.

    Attributes:
        model: the pipeline.
        tome: settings of token merging.
        rows: of the UNet's batch, two a picture with guidance.
        chunked_attention: whether the UNet's attention is computed a few queries at a time.
    """

    model: ModelSource
    tome: ToMeConfig
    rows: int = 2
    chunked_attention: bool = False


def check_memory(
    drawing: MemoryNeeds, height: int | None, width: int | None, *, prefix: str = "--", can_chunk: bool = True
) -> None:
    """Refuse a picture that cannot fit.

    Args:
        drawing: how it is drawn.
        height, width: in pixels; None for the model's native size, which is taken to fit.
        prefix: what stands before the names of both where they were given.
        can_chunk: whether ``--chunked-attention`` can be given.

    Raises:
        UserError: it takes more memory than there is.
    """
    free = get_free_bytes()
    if free is None or (height is None and width is None):
        return
    vae, unet = _config(drawing.model, "vae"), _config(drawing.model, "unet")
    scale = 2 ** (len(_numbers(vae, "block_out_channels")) - 1) if _numbers(vae, "block_out_channels") else 8
    native = unet.get("sample_size")
    usual = native * scale if isinstance(native, int) else 0
    parts = list(_parts(drawing, vae, unet, scale, height or usual, width or usual))
    most, what = max(parts)
    if most > free:
        given = {"height": height, "width": width}
        names = " and ".join(f"{prefix}{name} {pixels}" for name, pixels in given.items() if pixels is not None)
        chunked = can_chunk and all(size <= free for size, part in parts if part != _UNET)
        remedy = ", or give --chunked-attention" if chunked else ""
        raise UserError(
            f"{names}: {what} alone takes at least {most / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are "
            f"free; draw a smaller picture{remedy}"
        )


def _parts(
    drawing: MemoryNeeds, vae: dict[str, Any], unet: dict[str, Any], scale: int, height: int, width: int
) -> Iterator[tuple[int, str]]:
    """What must be in memory at once, by parts of the work: bytes, and what for.

    Args:
        drawing: how it is drawn.
        vae, unet: their configurations; empty where they are not known.
        scale: how many times smaller than the picture the latent is.
        height, width: in pixels.
    """
    yield 3 * _BYTES * height * width, "the picture"
    if installed_version("paddlepaddle-gpu") is not None:
        return  # the rest may be in the memory of a GPU
    channels = _numbers(vae, "block_out_channels")
    if channels:
        # At full size: what enters the last block of the decoder, and its norm.
        yield 2 * max(channels[:2]) * _BYTES * height * width, "decoding"
        if vae.get("mid_block_add_attention", True):
            yield 2 * _BYTES * ((height // scale) * (width // scale)) ** 2, "the attention of the VAE"
    if not drawing.chunked_attention:
        # Models that were distilled with their guidance are called without the second half.
        rows = 1 if unet.get("time_cond_proj_dim") else drawing.rows
        # The scores and their softmax.
        yield 2 * _BYTES * rows * _scores(unet, drawing.tome, height // scale, width // scale), _UNET


def _scores(unet: dict[str, Any], tome: ToMeConfig, height: int, width: int) -> int:
    """How many attention scores a block of the finest level makes of a row, at the least that the settings leave.

    Args:
        unet: its configuration.
        tome: settings of token merging.
        height, width: of the latent.
    """
    blocks = unet.get("down_block_types")
    heads = _numbers(unet, "num_attention_heads") or _numbers(unet, "attention_head_dim")
    if not isinstance(blocks, list) or not heads or unet.get("only_cross_attention"):
        return 0
    place = next((number for number, block in enumerate(blocks) if "CrossAttn" in str(block)), None)
    if place is None:
        return 0
    level = 2**place
    tokens = -(-height // level) * -(-width // level)
    left = tokens - int(tokens * tome.highest_ratio(level))
    return heads[min(place, len(heads) - 1)] * left * (tokens if METHODS[tome.method].keeps_queries else left)


def get_free_bytes() -> int | None:
    """Return the bytes of memory and swap that this process can still take; None where swap grows as needed."""
    import psutil

    return get_free_memory() + psutil.swap_memory().free if sys.platform == "linux" else None


def _numbers(config: dict[str, Any], name: str) -> list[int]:
    """A setting that is a number for each block, or one for all; nothing where it is none."""
    found = config.get(name)
    values = found if isinstance(found, list) else [found]
    return values if all(isinstance(value, int) and value > 0 for value in values) else []


@lru_cache(maxsize=16)
def _config(model: ModelSource, part: str) -> dict[str, Any]:
    """The settings of a part of a pipeline; nothing where they are not on this machine."""
    path = None if model.folder is None else model.folder / part / "config.json"
    return {} if path is None or not path.is_file() else read_json(path)
