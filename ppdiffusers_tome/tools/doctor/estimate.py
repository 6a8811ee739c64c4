"""What token merging is going to do for one model at one size, before a picture is drawn: tokens and seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import paddle

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.kv_reduction import plan_pooling
from ppdiffusers_tome.merging.masks import add_group_size_bias, expand_to_heads
from ppdiffusers_tome.merging.methods import METHODS, POOLED
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION
from ppdiffusers_tome.patching.blocks import MergeableBlock, find_blocks, gets_group_sizes, select_blocks
from ppdiffusers_tome.patching.layers import find_layer
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.overrides.attention import has_plain_scores, move_mask_to_channel
from ppdiffusers_tome.patching.state.reducer import build_reducer
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.measure.clock import seconds_of
from ppdiffusers_tome.tools.measure.memory import get_free_device_memory

_REPEATS = 3
# Of the memory that is there; attention that needs more is not tried.
_SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class Estimate:
    """What is going to happen to the blocks of a denoiser at one level.

    Attributes:
        part: the pipeline's name for the denoiser; "" for a model of its own.
        level: how many times smaller than the latent the grid is.
        grid: of the tokens.
        num_blocks: how many there are.
        num_merged: tokens of each picture that merge away, at most; 0 where ``reason`` says why.
        reason: why nothing merges at this level; None where something does.
        seconds: of self-attention in one block for one row of the batch, unmerged.
        merged_seconds: the same with matching, merging and unmerging around it.
        untimed: why it was not timed; None where it was, or where nothing merges.
    """

    part: str
    level: int
    grid: Grid
    num_blocks: int
    num_merged: int
    reason: str | None = None
    seconds: float | None = None
    merged_seconds: float | None = None
    untimed: str | None = None


def latent_size(pipe: Any, height: int | None, width: int | None) -> tuple[tuple[int, int], int]:
    """Height and width of a pipeline's latent, and how many pixels a side one of its points stands for.

    Args:
        pipe: a pipeline.
        height, width: of the picture in pixels; None for what its denoiser was made for.

    Raises:
        UserError: a size is not given and the pipeline does not tell its own.
    """
    scale = int(getattr(pipe, "vae_scale_factor", 1))
    configs = [getattr(model, "config", None) for _, model in list_models(pipe)]
    sample = next((size for config in configs if (size := getattr(config, "sample_size", None))), None)
    if sample is None and (height is None or width is None):
        raise UserError("the size of this pipeline is not known; give --height and --width")
    rows, columns = (sample, sample) if isinstance(sample, int) else sample or (0, 0)
    return (rows if height is None else height // scale, columns if width is None else width // scale), scale


def estimates(model_or_pipe: Any, config: ToMeConfig, height: int, width: int, *, timed: bool = True) -> list[Estimate]:
    """Look at every level of every denoiser, and try one block of each that merges.

    Args:
        model_or_pipe: a pipeline or model; it is left as it is.
        config: the settings to look at.
        height, width: of the latent (of the picture, where there is no VAE).
        timed: False to try none.

    Returns:
        By denoiser and level; empty where there is no block on a grid.
    """
    made = []
    for part, model in list_models(model_or_pipe):
        sites = find_blocks(model)
        chosen = {id(site) for site in select_blocks(sites, config)}
        for level in sorted({site.level for site in sites}):
            alike = [site for site in sites if site.level == level]
            merging = [site for site in alike if id(site) in chosen]
            estimate = _counted(part, alike, merging, config, height, width)
            if timed and estimate.reason is None:
                estimate = _timed(estimate, merging[0], config)
            made.append(estimate)
    return made


def _counted(
    part: str, alike: list[MergeableBlock], merging: list[MergeableBlock], config: ToMeConfig, height: int, width: int
) -> Estimate:
    """What merges in the blocks of one level, ``alike``, of which ``merging`` are reached."""
    level, grid = alike[0].level, _grid(alike[0], height, width)
    ratio = config.highest_ratio(level)
    num_merged = grid.num_merged(ratio)
    if num_merged and METHODS[config.method].keys == POOLED:
        num_merged = grid.num_tokens - plan_pooling(Layout(grid), grid, num_merged, (config.sx, config.sy, 1)).num_left
    if not merging:
        reason = _not_reached(config)
    elif grid.num_cells(config.sx, config.sy) == 0:
        reason = f"smaller than one cell of {config.sy}x{config.sx} tokens"
    elif num_merged == 0:
        reason = f"ratio {ratio:g} of {grid.num_tokens} tokens is none"
    else:
        return Estimate(part, level, grid, len(merging), num_merged)
    return Estimate(part, level, grid, len(alike), 0, reason)


def _not_reached(config: ToMeConfig) -> str:
    if config.levels is not None:
        return f"none: ratio names level {', '.join(map(str, config.levels))} only"
    limit = "the finest level" if config.max_downsample is None else f"level {config.max_downsample}"
    return f"none: max_downsample={config.max_downsample} reaches {limit}"


def _grid(site: MergeableBlock, height: int, width: int) -> Grid:
    """The grid of a block, from the latent's size: halved, rounding up, as often as the level says; then patches."""
    patch = site.adapter.downsample(site.parent)
    for _ in range((site.level // patch).bit_length() - 1):
        height, width = -(-height // 2), -(-width // 2)
    return Grid(height // patch, width // patch)


@paddle.no_grad()
def _timed(estimate: Estimate, site: MergeableBlock, config: ToMeConfig) -> Estimate:
    grid = estimate.grid
    point = site.adapter.points[ATTENTION][0]
    attention = find_layer(site.block, point.leave)
    if not config.merge_attn or not point.is_one_layer or not hasattr(attention, "to_q"):
        return replace(estimate, untimed=f"self-attention of {type(site.block).__name__} cannot be called on its own")
    weight = attention.to_q.weight
    # Only the plain processor holds all scores at once, and on a CPU that of xFormers; others have other names.
    holding = ("AttnProcessor", "XFormersAttnProcessor") if paddle.get_device() == "cpu" else ("AttnProcessor",)
    if type(getattr(attention, "processor", None)).__name__ in holding:
        # Scores and their softmax.
        needed = 2 * attention.heads * grid.num_tokens**2 * weight.element_size()
        available = get_free_device_memory()
        if available is not None and needed > _SHARE_OF_MEMORY * available:
            untimed = f"unmerged attention needs {needed / 2**30:.1f} GiB a row for its scores alone"
            return replace(estimate, untimed=untimed)
    noise = np.random.default_rng(0).standard_normal((1, grid.num_tokens, weight.shape[0]), np.float32)
    x = paddle.to_tensor(noise).astype(weight.dtype)
    # Noise is nowhere alike.
    layout = Layout(grid, level=site.level)
    match: Any = build_reducer(replace(config, min_similarity=None), layout, estimate.num_merged)

    def merged() -> Any:
        matching = match(x)
        return matching.restore(attention(matching.reduce(x)))

    def with_fewer_keys() -> Any:
        keys = match(x)
        tokens, sizes = keys.reduce(x), None
        if point.has_prepared_mask and gets_group_sizes(attention, config):
            sizes = add_group_size_bias(None, keys, 0, weight.dtype, text_first=False)
        told: dict[str, Callable[..., Any]] = {}
        if sizes is not None:
            told["prepare_attention_mask"] = lambda mask, length, batch, out_dim=4, *_: expand_to_heads(
                sizes, attention.heads, out_dim
            )
            if has_plain_scores(attention):
                scores = attention.get_attention_scores
                told["get_attention_scores"] = lambda query, key, attention_mask=None: scores(
                    *move_mask_to_channel(attention, query, key, attention_mask)
                )
        hooks = [
            find_layer(site.block, path).register_forward_pre_hook(lambda layer, inputs: (tokens,))
            for path in point.keys
        ]
        try:
            with _standing_in(attention, told):
                return attention(x)
        finally:
            for hook in hooks:
                hook.remove()

    timed = with_fewer_keys if METHODS[config.method].keeps_queries else merged
    return replace(estimate, seconds=_best(lambda: attention(x)), merged_seconds=_best(timed))


@contextmanager
def _standing_in(layer: Any, methods: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Others in place of a layer's methods; what is on the layer by their names, ToMe's or a user's, is put back."""
    own = {name: vars(layer)[name] for name in methods if name in vars(layer)}
    vars(layer).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(layer)[name]
        vars(layer).update(own)


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few runs; the first is not counted."""
    return min([seconds_of(work) for _ in range(_REPEATS + 1)][1:])
