"""Refusals, explanations and advice before ToMe is applied or removed."""

from collections.abc import Iterable
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.errors import NothingToMergeError, ToMeValueError
from ppdiffusers_tome.messages import warn_user
from ppdiffusers_tome.patching.adapters.adapter import ROLES
from ppdiffusers_tome.patching.blocks import MergeableBlock, find_blocks
from ppdiffusers_tome.patching.denoisers import find_family, find_refusal, find_timestep_layer
from ppdiffusers_tome.patching.layers import find_layer, is_a
from ppdiffusers_tome.patching.override import Override
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import HIGHEST_SHARE, NOISE_HISTORIES, UNET, explain_noise_history


def require_whole(layer: Layer) -> None:
    """Refuse a layer inside of a denoiser."""
    # The class of a DiT is that of a part of a UNet, too.
    is_model = is_a(layer, "ModelMixin") and not getattr(layer, "is_input_continuous", False)
    if not is_model and find_timestep_layer(layer) is None:
        raise ToMeValueError(
            f"{type(layer).__name__} is a part of a model, and ToMe has the same settings in all of a model: give the "
            "model or its pipeline, and max_downsample=1, 2, 4 or 8 to choose its finest levels"
        )


def require_computable(denoiser: Layer) -> None:
    """Refuse half precision on a CPU, where Paddle computes nothing in it."""
    for weights in denoiser.parameters():
        if weights.dtype in (paddle.float16, paddle.bfloat16) and weights.place.is_cpu_place():
            raise ToMeValueError(
                f"{type(denoiser).__name__} has weights in {str(weights.dtype).removeprefix('paddle.')} on a CPU, on "
                "which Paddle computes in float32; load it with paddle_dtype=paddle.float32, or move it to a GPU before"
            )


def require_frames(blocks: list[MergeableBlock], config: ToMeConfig) -> None:
    """Refuse a stride over frames where attention is within one."""
    single = next((block for block in blocks if block.adapter.frames_axis is None), None)
    if config.st > 1 and single is not None:
        raise NothingToMergeError(
            f"st={config.st} merges tokens of several frames, and the attention of {type(single.layer).__name__} "
            f"({single.path or 'the block itself'}) is within one image or frame; leave st at 1"
        )


def require_no_foreign_cache(blocks: list[MergeableBlock], config: ToMeConfig) -> None:
    """Refuse ppdiffusers' caches, such as Pyramid Attention Broadcast, in layers that will merge."""
    for layer in (find_layer(block.layer, point.layer) for block in blocks for _, point in block.list_points(config)):
        hooks = getattr(vars(layer).get("_diffusers_hook"), "hooks", {}).values()
        if any(hasattr(getattr(hook, "state", None), "cache") for hook in hooks):
            raise ToMeValueError(
                f"{type(layer).__name__} has a cache over steps of ppdiffusers, which would keep merged tokens; call "
                "disable_cache() before apply_tome, and enable_cache(...) after it"
            )


def require_unused(model: Layer, overrides: Iterable[Override]) -> None:
    """Refuse to change ToMe while a model runs; the caller holds ``CHANGE_LOCK``."""
    if any(override.state.running for override in overrides):
        raise ToMeValueError(
            f"ToMe on {type(model).__name__} cannot change while a call of the denoiser runs: change it afterwards, or "
            "give each thread a shared_copy of the pipeline"
        )


def warn_of_settings(blocks: list[MergeableBlock], config: ToMeConfig) -> None:
    """Warn where settings do nothing, or keep less than fewer steps."""
    preset = config.preset_name
    if config.changes_nothing:
        warn_user("ratio=0 without a cache merges nothing; give a ratio, such as 0.5, or a cache, such as cache=0.2")
    for denoiser in dict.fromkeys(block.denoiser for block in blocks):
        family, name = find_family(denoiser), type(denoiser).__name__
        if family != UNET and preset is not None:
            warn_user(
                f"the preset {preset!r} is not advised for {name}, a {family}: fewer steps keep more of its images in "
                "the same time; ratio 0 with cache=0.2 keeps more than they do (docs/en/guides/settings.md)"
            )
        if config.cache > HIGHEST_SHARE:
            warn_user(
                f"cache={config.cache:g} skips more than {HIGHEST_SHARE:g} of the steps of {name}, a {family}, where "
                "some images keep less than with fewer steps; give less, or see by ppdiffusers_tome.tune what they keep"
            )


def warn_of_schedulers(model_or_pipe: Any, config: ToMeConfig) -> None:
    """Warn where a pipeline's scheduler carries changes into later steps."""
    for scheduler in vars(model_or_pipe).values():
        if is_a(scheduler, *NOISE_HISTORIES) and not config.changes_nothing:
            warn_user(explain_noise_history(type(scheduler).__name__))


def explain_no_block(model_or_pipe: Any, denoisers: list[tuple[str, Layer]], config: ToMeConfig) -> str:
    """Return the message of the error that nothing merges, with its cause."""
    name = type(model_or_pipe).__name__
    blocks = [block for _, layer in denoisers for block in find_blocks(layer)]
    if not blocks:
        models = ", ".join(f"{key} ({type(layer).__name__})" if key else name for key, layer in denoisers)
        reasons = {
            type(layer).__name__: next(filter(None, map(find_refusal, layer.sublayers(include_self=True))), None)
            for _, layer in denoisers
        }
        why = "".join(f". {cls}: {reason}" for cls, reason in reasons.items() if reason)
        return (
            f"{name} has nothing to merge: looked at {models or 'no model'} and found no block on a grid of image "
            f"tokens{why}. Apply ToMe to a denoiser that has such blocks (a UNet, a ControlNet, a diffusion "
            "transformer), or to the pipeline that holds one; docs/en/reference/coverage.md lists which have"
        )
    levels = ", ".join(str(level) for level in sorted({block.level for block in blocks if block.list_points(config)}))
    if levels:
        return (
            f"{name} has nothing to merge at the levels of max_downsample={config.max_downsample}; its blocks are at "
            f"{levels}, so give one"
        )
    flags = ", ".join(f"{role}=True" for role in ROLES if getattr(config, role))
    return (
        f"{name} has nothing to merge with method={config.method!r}: no block of it has the layers that {flags} needs; "
        "try merge_attn=True and method='tome'"
    )
