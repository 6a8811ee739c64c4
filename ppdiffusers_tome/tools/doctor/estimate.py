"""Estimates for one pipeline: tokens, memory, and the time of a call."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import paddle
import ppdiffusers

from ppdiffusers_tome.api import apply_tome, remove_tome
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.blocks import MergeableBlock, find_blocks, select_blocks
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation.class_labels import compute_vae_scale
from ppdiffusers_tome.tools.generation.sampling import get_class_labels
from ppdiffusers_tome.tuning.measurement import keep_random_state, read_clock

_REPEATS = 2


@dataclass(frozen=True)
class Estimate:
    """The merging in the blocks of a denoiser at one level."""

    part: str  # the pipeline's name for the denoiser; "" for a bare model
    level: int  # how many times smaller than the latent the grid is
    grid: Grid
    num_blocks: int
    num_heads: int  # of self-attention; 0 where its layers do not tell it
    num_merged: int = 0  # tokens of each image, at most
    reason: str | None = None  # why nothing merges


def find_latent_size(pipe: Any, height: int | None, width: int | None) -> tuple[tuple[int, int], int]:
    """Return the size of a pipeline's latent, and its scale to pixels."""
    labels = get_class_labels(pipe)
    if labels is not None:
        labels.check_arguments({}, height, width, 1.0)
    scales = [getattr(pipe, name, None) for name in ("vae_scale_factor_spatial", "vae_scale_factor")]
    if "block_out_channels" in (getattr(getattr(pipe, "vae", None), "config", None) or {}):
        scales.append(compute_vae_scale(pipe.vae.config))  # a DiTPipeline does not tell it
    scale = next((int(scale) for scale in scales if scale is not None), 1)
    configs = [getattr(model, "config", None) for _, model in list_models(pipe)]
    sample = next((size for config in configs if (size := getattr(config, "sample_size", None))), None)
    if sample is None and (height is None or width is None):
        raise UserError("the size of this pipeline is not known; give --height and --width")
    rows, columns = (sample, sample) if isinstance(sample, int) else sample or (0, 0)
    return (rows if height is None else height // scale, columns if width is None else width // scale), scale


def estimate_merging(model_or_pipe: Any, config: ToMeConfig, height: int, width: int) -> list[Estimate]:
    """Count the tokens that merge at every level of every denoiser.

    Height and width are those of the latent (of the image, where there is no VAE).
    """
    estimates = []
    for part, model in list_models(model_or_pipe):
        blocks = find_blocks(model)
        selected = {id(block) for block in select_blocks(blocks, config)}
        for level in sorted({block.level for block in blocks}):
            at_level = [block for block in blocks if block.level == level]
            grid, num_selected = _find_grid(at_level[0], height, width), sum(id(each) in selected for each in at_level)
            num_heads = max(getattr(layer, "heads", 0) for layer in at_level[0].block.sublayers(include_self=True))
            estimate = Estimate(part, level, grid, num_selected or len(at_level), num_heads)
            reason = _explain_unmerged(config, grid, num_selected)
            num_merged = 0 if reason else grid.num_merged(config.highest_ratio)
            estimates.append(replace(estimate, num_merged=num_merged, reason=reason))
    return estimates


def time_denoiser(pipe: Any, part: str, config: ToMeConfig, height: int, width: int) -> tuple[float, float]:
    """Time a denoiser call of an image, unmerged and where most merges.

    The pipeline has no ToMe, before and after; height and width are those of the image in pixels.
    """
    denoiser = dict(list_models(pipe))[part]
    unmerged = min(_time_call(pipe, denoiser, height, width) for _ in range(_REPEATS))
    # It is the first call of an image, in which a start or a ramp may leave all unmerged.
    apply_tome(pipe, replace(config.without_cache, ratio=config.highest_ratio, start=0.0, end=1.0))
    try:
        return unmerged, min(_time_call(pipe, denoiser, height, width) for _ in range(_REPEATS))
    finally:
        remove_tome(pipe)


def compute_memory(
    pipe: Any, levels: list[Estimate], config: ToMeConfig, height: int, width: int
) -> list[tuple[str, int, int]]:
    """Compute the least memory of an image with guidance.

    Height and width are those of the image in pixels. Rows are a name and bytes, unmerged and merged.
    """
    models, vae = dict(list_models(pipe, denoisers_only=False)), getattr(pipe, "vae", None)
    weights = sum(int(x.size) * x.element_size() for model in models.values() for x in model.parameters())
    decoding = unmerged = merged = 0
    if isinstance(vae, ppdiffusers.AutoencoderKL):
        # The last level's input, norm and output. On a CPU a convolution of 3x3 unfolds its input.
        copies = 11.5 if paddle.get_device() == "cpu" else 3
        channels = max(vae.config.block_out_channels[:2])
        element_size = vae.parameters()[0].element_size()
        if hasattr(pipe, "upcast_vae") and vae.config.force_upcast and vae.dtype == paddle.float16:
            element_size = 4  # SDXL's VAE overflows in float16
        decoding = int(copies * channels * height * width * element_size)
    for each in levels:
        model = models[each.part]
        distilled = ("guidance_embeds", "time_cond_proj_dim")
        is_distilled = any(getattr(getattr(model, "config", None), name, None) for name in distilled)
        rows = 1 if is_distilled or "guidance_scale" not in inspect.signature(pipe.__call__).parameters else 2
        # Scores and their softmax; merged, those of the step in which least merges.
        size = 2 * rows * each.num_heads * model.parameters()[0].element_size()
        lowest_ratio = min(config.ratio_at(progress) for progress in (0.0, 0.5, 1.0))
        tokens = each.grid.num_tokens
        keys = tokens - min(each.num_merged, each.grid.num_merged(lowest_ratio))
        unmerged = max(unmerged, size * tokens * tokens)
        merged = max(merged, size * keys * (tokens if METHODS[config.method].keeps_queries else keys))
    return [
        ("weights", weights, weights), ("decoding", decoding, decoding), ("scores, plain attention", unmerged, merged),
        ("peak, plain attention", weights + max(unmerged, decoding), weights + max(merged, decoding)),
        ("peak, CPU, xformers or flash attention", weights + decoding, weights + decoding),
    ]  # fmt: skip


class _TimedError(Exception):
    """Ends a pipeline's call after the first call of its denoiser."""


def _time_call(pipe: Any, denoiser: Any, height: int, width: int) -> float:
    """Time the first call of an image, and stop its pipeline there."""
    takes = inspect.signature(pipe.__call__).parameters
    wanted = dict(prompt="", class_labels=[0], height=height, width=width, num_inference_steps=20, guidance_scale=1.0)
    starts: list[float] = []

    def start(*_: Any) -> None:
        starts.append(read_clock())

    def stop(*_: Any) -> None:
        raise _TimedError(read_clock() - starts[-1])

    hooks = [denoiser.register_forward_pre_hook(start), denoiser.register_forward_post_hook(stop)]
    try:
        with keep_random_state():
            pipe(**{name: value for name, value in wanted.items() if name in takes})
    except _TimedError as timed:
        return timed.args[0]
    except Exception as error:  # such as TypeError for a missing image
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{type(pipe).__name__} cannot be called with a prompt alone ({reason})") from error
    finally:
        for hook in hooks:
            hook.remove()
    raise UserError(f"{type(pipe).__name__} does not call its denoiser as a layer")


def _explain_unmerged(config: ToMeConfig, grid: Grid, num_selected: int) -> str | None:
    """Explain why nothing merges at a level; None where something does."""
    ratio = config.highest_ratio
    if not num_selected:
        limit = "the finest level" if config.max_downsample is None else f"level {config.max_downsample}"
        return f"none: max_downsample={config.max_downsample} reaches {limit}"
    if grid.num_cells(config.sx, config.sy) and grid.num_merged(ratio):
        return None
    return f"{grid.num_tokens}: too few for ratio {ratio:g} and this stride"


def _find_grid(block: MergeableBlock, height: int, width: int) -> Grid:
    """Halve the latent's size once per level, rounding up, then form patches."""
    patch = block.adapter.downsample(block.parent)
    for _ in range(round(math.log2(block.level / patch))):
        height, width = -(-height // 2), -(-width // 2)
    return Grid(height // patch, width // patch)
