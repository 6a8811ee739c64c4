"""``apply_tome`` and ``remove_tome``: as functions, as a mixin, and on every ppdiffusers pipeline and model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from ppdiffusers_tome.applying import AppliedToMe, applied_tome, apply_config, remove_tome
from ppdiffusers_tome.config import Ratio, ToMeConfig, presets
from ppdiffusers_tome.errors import ToMeTypeError

T = TypeVar("T")


def apply_tome(
    model_or_pipe: T,
    ratio: Ratio | str | ToMeConfig = 0.5,
    max_downsample: int | None = None,
    sx: int = 2,
    sy: int = 2,
    use_rand: bool = True,
    merge_attn: bool = True,
    merge_crossattn: bool = False,
    merge_mlp: bool = False,
    seed: int = 0,
    *,
    tile: int | None = None,
    reuse_steps: int = 1,
    reuse_blocks: bool = False,
    method: str = "tome",
    min_similarity: float | None = None,
    start: float = 0.0,
    end: float = 1.0,
    config: ToMeConfig | None = None,
    call: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
) -> T:
    """Merge redundant tokens in every denoiser of a pipeline, or in one model. Replaces what was applied before.

    Args:
        model_or_pipe: a ppdiffusers pipeline (its UNet, prior, transformer and ControlNets are reached, its VAE and
            text encoder never), a model, or a part of a model.
        ratio: share of the tokens to merge away, below ``1 - 1 / (sx * sy)``; several, a ramp over the denoising; a
            mapping of either by level. Or what stands for all settings: a :class:`ToMeConfig`, or the name of a
            preset, ``"quality"``, ``"balanced"`` or ``"fast"``.
        max_downsample, sx, sy, use_rand, merge_attn, merge_crossattn, merge_mlp, seed: see :class:`ToMeConfig`.
        tile, reuse_steps, reuse_blocks: cheaper matching, see :class:`ToMeConfig`.
        method: ``"tome"``, ``"prune"``, ``"tofu"`` or ``"todo"``: what becomes of tokens that belong together.
        min_similarity, start, end: merge only what is alike, and only in a part of the denoising.
        config: the same as giving a :class:`ToMeConfig` first.
        call, target: with ``ratio="auto"``, which tries settings on this pipeline and keeps the best: how the pipeline
            is called (``{"prompt": "a cat", "height": 768, "width": 768}``), and what is wanted, one or more of
            ``{"psnr": 30, "speedup": 1.5, "memory": 8 * 2**30}`` (dB, times, bytes; 30 dB where nothing is given). It
            draws some ten pictures. Where no settings pay, the pipeline stays unmerged and a warning says why.

    Returns:
        ``model_or_pipe``, so that calls chain.

    Raises:
        ToMeTypeError, ToMeValueError: a setting is of the wrong type or out of range.
        NothingToMergeError: no block would merge. In every case the model is left as it was.

    Example:
        >>> pipe.apply_tome(ratio=0.5)  # doctest: +SKIP

    Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023); arguments as in tomesd's ``apply_patch``.
    """
    if ratio == "auto":
        return _apply_tuned(model_or_pipe, call, target)
    if call is not None or target is not None:
        raise ToMeTypeError('call and target say what "auto" is to try; give them with ratio="auto"')
    settings = dict(
        ratio=ratio, max_downsample=max_downsample, sx=sx, sy=sy, use_rand=use_rand,
        merge_attn=merge_attn, merge_crossattn=merge_crossattn, merge_mlp=merge_mlp, seed=seed,
        tile=tile, reuse_steps=reuse_steps, reuse_blocks=reuse_blocks, method=method, min_similarity=min_similarity,
        start=start, end=end,
    )  # fmt: skip
    return apply_config(model_or_pipe, _config(settings, config))


def apply_patch(
    model: T,
    ratio: float = 0.5,
    max_downsample: int = 1,
    sx: int = 2,
    sy: int = 2,
    use_rand: bool = True,
    merge_attn: bool = True,
    merge_crossattn: bool = False,
    merge_mlp: bool = False,
) -> T:
    """:func:`apply_tome` under tomesd's name and with tomesd's defaults, for code that comes from there."""
    return apply_tome(model, ratio, max_downsample, sx, sy, use_rand, merge_attn, merge_crossattn, merge_mlp)


def remove_patch(model: T) -> T:
    """:func:`remove_tome` under tomesd's name."""
    return remove_tome(model)


class ToMeMixin:
    """Gives a pipeline or model class token merging: ``class MyPipeline(ToMeMixin, StableDiffusionPipeline)``."""

    def apply_tome(self, *args: Any, **kwargs: Any) -> Any:
        return apply_tome(self, *args, **kwargs)

    def remove_tome(self) -> Any:
        return remove_tome(self)

    @property
    def tome(self) -> AppliedToMe | None:
        """What is applied: settings and number of blocks by denoiser; None when nothing is."""
        return applied_tome(self)

    apply_tome.__doc__, remove_tome.__doc__ = apply_tome.__doc__, remove_tome.__doc__


def _apply_tuned(pipe: T, call: Mapping[str, Any] | None, target: Mapping[str, Any] | None) -> T:
    from ppdiffusers_tome.tuning import Target, tune_call

    if call is None:
        raise ToMeTypeError(
            'ratio="auto" tries settings by drawing pictures; say how the pipeline is called, as in '
            'apply_tome("auto", call={"prompt": "a cat"}, target={"psnr": 30})'
        )
    unknown = sorted(set(target or ()) - {field.name for field in fields(Target)})
    if unknown:
        raise ToMeTypeError(f"unknown target {', '.join(unknown)}; targets are psnr, speedup and memory")
    tuned = tune_call(pipe, call, Target(**(target or {"psnr": 30.0})))
    if tuned.config is None:
        warnings.warn(f"ToMe: {tuned.verdict}; the pipeline stays unmerged", stacklevel=3)
        return pipe
    return apply_config(pipe, tuned.config)


def _config(settings: dict[str, Any], config: ToMeConfig | None) -> ToMeConfig:
    """One config from either way of giving it; both at once is a mistake that would be lost silently."""
    if settings["ratio"] in presets():
        settings["ratio"] = ToMeConfig.preset(settings["ratio"])
    if config is None and not isinstance(settings["ratio"], ToMeConfig):
        return ToMeConfig(**settings)
    if config is None:
        config, settings["ratio"] = settings["ratio"], ToMeConfig.ratio
    if not isinstance(config, ToMeConfig):
        raise ToMeTypeError(f"config={config!r} must be a ToMeConfig; got {type(config).__name__}")
    defaults = ToMeConfig().to_dict()
    extra = [name for name, value in settings.items() if value != defaults[name]]
    if extra:
        raise ToMeTypeError(
            f"a ToMeConfig or preset was given together with {', '.join(extra)}; give one or the other, "
            "or change the config with dataclasses.replace"
        )
    return config
