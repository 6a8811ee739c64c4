"""``apply_tome`` and ``remove_tome``: as functions, as a mixin, and on every ppdiffusers pipeline and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ppdiffusers_tome.blocks.adapter import ROLES
from ppdiffusers_tome.config import Ratio, ToMeConfig, presets
from ppdiffusers_tome.errors import NothingToMergeError, ToMeTypeError
from ppdiffusers_tome.hooks import attach, attached_blocks, detach
from ppdiffusers_tome.methods import methods
from ppdiffusers_tome.parts import models_of
from ppdiffusers_tome.port import remove_port
from ppdiffusers_tome.refused import refusal_inside
from ppdiffusers_tome.sites import find_sites, reached

T = TypeVar("T")


@dataclass(frozen=True)
class AppliedToMe:
    """What is applied to a pipeline or model.

    Attributes:
        config: the settings.
        blocks: how many blocks merge, by denoiser: ``{"unet": 16, "controlnet": 7}``; the key is "" for a model.
    """

    config: ToMeConfig
    blocks: Mapping[str, int]

    @property
    def num_blocks(self) -> int:
        """Blocks that merge, over all denoisers."""
        return sum(self.blocks.values())


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

    Returns:
        ``model_or_pipe``, so that calls chain.

    Raises:
        ToMeTypeError, ToMeValueError: a setting is of the wrong type or out of range.
        NothingToMergeError: no block would merge. In every case the model is left as it was.

    Example:
        >>> pipe.apply_tome(ratio=0.5)  # doctest: +SKIP

    Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023); arguments as in tomesd's ``apply_patch``.
    """
    settings = dict(
        ratio=ratio, max_downsample=max_downsample, sx=sx, sy=sy, use_rand=use_rand,
        merge_attn=merge_attn, merge_crossattn=merge_crossattn, merge_mlp=merge_mlp, seed=seed,
        tile=tile, reuse_steps=reuse_steps, reuse_blocks=reuse_blocks, method=method, min_similarity=min_similarity,
        start=start, end=end,
    )  # fmt: skip
    config = _config(settings, config)
    denoisers = list(models_of(model_or_pipe))
    plan = [(layer, reached(find_sites(layer), config)) for _, layer in denoisers]
    if not any(chosen for _, chosen in plan):
        raise NothingToMergeError(_why_nothing(model_or_pipe, denoisers, config))
    # Nothing was touched before this line and nothing can fail after it.
    remove_tome(model_or_pipe)
    for layer, chosen in plan:
        if chosen:
            attach(layer, chosen, config)
    return model_or_pipe


def remove_tome(model_or_pipe: T) -> T:
    """Take token merging off a pipeline, a model or a part of one, leaving it exactly as it was before.

    Args:
        model_or_pipe: as for :func:`apply_tome`; one that has no ToMe is left alone.

    Returns:
        ``model_or_pipe``.

    Raises:
        ToMeTypeError: it is neither a pipeline nor a model.
    """
    # The port marks text encoders too, so everything is looked at, not only what denoises.
    for _, layer in models_of(model_or_pipe, denoisers_only=False):
        detach(layer)
        remove_port(layer)
    return model_or_pipe


def applied_tome(model_or_pipe: Any) -> AppliedToMe | None:
    """What is applied to a pipeline or model, or None."""
    config: ToMeConfig | None = None
    blocks: dict[str, int] = {}
    seen: set[int] = set()
    for name, layer in models_of(model_or_pipe):
        # Two models may hold the same layers (Versatile Diffusion's UNets).
        found = {id(block): hooks.run.config for _, block, hooks in attached_blocks(layer) if id(block) not in seen}
        seen |= found.keys()
        if found:
            config = config or next(iter(found.values()))
            blocks[name] = len(found)
    return None if config is None else AppliedToMe(config, blocks)


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


def _why_nothing(model_or_pipe: Any, denoisers: list[tuple[str, Any]], config: ToMeConfig) -> str:
    """The sentence that separates the causes: no block at all, none at this level, none with these flags."""
    name = type(model_or_pipe).__name__
    sites = [site for _, layer in denoisers for site in find_sites(layer)]
    if not sites:
        looked_at = ", ".join(f"{key} ({type(layer).__name__})" if key else name for key, layer in denoisers)
        reasons = {type(layer).__name__: refusal_inside(layer) for _, layer in denoisers}
        why = "".join(f". {cls}: {reason}" for cls, reason in reasons.items() if reason)
        return (
            f"{name} has nothing to merge: looked at {looked_at or 'no model'} and found no block on a grid of image "
            f"tokens{why}. Apply ToMe to a denoiser that has such blocks (a UNet, a ControlNet, a diffusion "
            "transformer), or to the pipeline that holds one; `ppdiffusers-tome doctor` lists which have"
        )
    if config.levels is not None:
        found = ", ".join(str(level) for level in sorted({site.level for site in sites if site.sections(config)}))
        if found:
            return f"{name} has nothing to merge at the levels of ratio={config.ratio}; its blocks are at {found}"
    finest_sites = reached(sites, replace(config, max_downsample=None))
    if finest_sites:
        finest = finest_sites[0].level
        return (
            f"{name} has nothing to merge at max_downsample={config.max_downsample}: its finest attention is at level "
            f"{finest}; give max_downsample={finest} or more, or None for the finest level"
        )
    if methods()[config.method].keys_only and config.merge_attn:
        return (
            f"{name} has nothing to merge with method={config.method!r}: no block of it makes keys and values of its "
            "tokens by layers of their own; choose another method"
        )
    flags = ", ".join(f"{role}=True" for role in ROLES if getattr(config, role))
    return (
        f"{name} has nothing to merge: no block of it has the sublayer that {flags} merges around; "
        "try merge_attn=True"
    )
