"""``apply_tome`` and ``remove_tome``: as functions, as a mixin, and on every ppdiffusers pipeline and model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.patching.apply import AppliedToMe, applied_tome, apply_config, remove_tome
from ppdiffusers_tome.settings.config import Ratio, ToMeConfig
from ppdiffusers_tome.settings.overrides import apply_overrides
from ppdiffusers_tome.settings.presets import is_preset
from ppdiffusers_tome.settings.types import UNSET, to_python, truncated_repr

T = TypeVar("T")


def apply_tome(
    model_or_pipe: T,
    ratio: Ratio | str | ToMeConfig = UNSET,
    max_downsample: int | None = UNSET,
    sx: int = UNSET,
    sy: int = UNSET,
    use_rand: bool = UNSET,
    merge_attn: bool = UNSET,
    merge_crossattn: bool = UNSET,
    merge_mlp: bool = UNSET,
    seed: int = UNSET,
    *,
    tile: int | None = UNSET,
    reuse_steps: int = UNSET,
    reuse_blocks: bool = UNSET,
    method: str = UNSET,
    min_similarity: float | None = UNSET,
    start: float = UNSET,
    end: float = UNSET,
    st: int = UNSET,
    proportional: bool | None = UNSET,
    config: ToMeConfig | str | Path | None = None,
) -> T:
    """Merge redundant tokens in every denoiser of a pipeline, or in one model. Replaces what was applied before.

    Every argument that is given holds. What is not given is that of the preset or config, if there is one, and else
    the default of ``ToMeConfig``: ``apply_tome(pipe, "quality", seed=1)`` is that preset with another seed, and
    ``apply_tome(pipe, config=mine, tile=None)`` is ``mine`` without tiles.

    Args:
        model_or_pipe: a ppdiffusers pipeline (its UNet, prior, transformer and ControlNets are reached, its VAE and
            text encoder never), a model, or a part of a model.
        ratio: share of the tokens to merge away, below ``1 - 1 / (sx * sy * st)`` (0.5 unless given); several, a ramp
            over the denoising; a mapping of either by level. Or what the other arguments start from: a
            ``ToMeConfig``, or the name of a preset, ``"quality"``, ``"balanced"`` or ``"fast"``.
        max_downsample, sx, sy, use_rand, merge_attn, merge_crossattn, merge_mlp, seed: see ``ToMeConfig``.
        tile, reuse_steps, reuse_blocks: cheaper matching, see ``ToMeConfig``.
        method: what becomes of similar tokens: ``"tome"``, ``"prune"`` or ``"tofu"``; or how keys and values become
            fewer while every query is kept: ``"keys"``, ``"pool"`` or ``"todo"``.
        min_similarity, start, end: merge similar tokens only, and only in a part of the denoising.
        st: stride over the frames of a video.
        proportional: let merged tokens count as many times as they stand for tokens.
        config: what the other arguments start from, the ratio among them, as ``--config`` is on the command line: a
            ``ToMeConfig``, the name of a preset, or a JSON file that ``ToMeConfig.save`` wrote.

    Returns:
        ``model_or_pipe``, so that calls chain.

    Raises:
        ToMeTypeError, ToMeValueError: a setting is of the wrong type or out of range, or does not go together with
            the preset or config.
        NothingToMergeError: no block would merge. In every case the model is left as it was.

    Example:
        >>> pipe = apply_tome(pipe, ratio=0.5)  # or pipe.apply_tome(ratio=0.5)
        >>> pipe.tome.config.ratio
        0.5

    Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023); arguments as in tomesd's ``apply_patch``.
    ``ppdiffusers_tome.tune`` finds settings by trying them.
    """
    settings = dict(
        ratio=ratio, max_downsample=max_downsample, sx=sx, sy=sy, use_rand=use_rand,
        merge_attn=merge_attn, merge_crossattn=merge_crossattn, merge_mlp=merge_mlp, seed=seed,
        tile=tile, reuse_steps=reuse_steps, reuse_blocks=reuse_blocks, method=method, min_similarity=min_similarity,
        start=start, end=end, st=st, proportional=proportional,
    )  # fmt: skip
    given = {name: value for name, value in settings.items() if value is not UNSET}
    return apply_config(model_or_pipe, apply_overrides(_base(given, config), given))


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
    """``apply_tome`` under tomesd's name and with tomesd's defaults, for code that comes from there.

    Raises:
        ToMeTypeError: ``ratio`` is a preset or config, of which tomesd's defaults would replace most.
    """
    if isinstance(ratio, str | ToMeConfig):
        raise ToMeTypeError(
            f"ratio={truncated_repr(ratio)} must be a number here, as apply_patch has tomesd's arguments and defaults; give "
            "presets and configs to apply_tome"
        )
    return apply_tome(model, ratio, max_downsample, sx, sy, use_rand, merge_attn, merge_crossattn, merge_mlp)


def remove_patch(model: T) -> T:
    """``remove_tome`` under tomesd's name."""
    return remove_tome(model)


class ToMeMixin:
    """Gives a pipeline or model class token merging: ``class MyPipeline(ToMeMixin, StableDiffusionPipeline)``."""

    def apply_tome(
        self: T,
        ratio: Ratio | str | ToMeConfig = UNSET,
        max_downsample: int | None = UNSET,
        sx: int = UNSET,
        sy: int = UNSET,
        use_rand: bool = UNSET,
        merge_attn: bool = UNSET,
        merge_crossattn: bool = UNSET,
        merge_mlp: bool = UNSET,
        seed: int = UNSET,
        *,
        tile: int | None = UNSET,
        reuse_steps: int = UNSET,
        reuse_blocks: bool = UNSET,
        method: str = UNSET,
        min_similarity: float | None = UNSET,
        start: float = UNSET,
        end: float = UNSET,
        st: int = UNSET,
        proportional: bool | None = UNSET,
        config: ToMeConfig | str | Path | None = None,
    ) -> T:
        """Merge redundant tokens in every denoiser of this pipeline, or in this model; returns it."""
        given = dict(locals())
        return apply_tome(given.pop("self"), **given)

    def remove_tome(self: T) -> T:
        """Take ToMe off, so that the pipeline or model is exactly as before; returns it."""
        return remove_tome(self)

    @property
    def tome(self) -> AppliedToMe | None:
        """What is applied: settings and number of blocks by denoiser; None when nothing is."""
        return applied_tome(self)


# What ``help(pipe.apply_tome)`` shows; editors that run nothing show the sentence above.
ToMeMixin.apply_tome.__doc__, ToMeMixin.remove_tome.__doc__ = apply_tome.__doc__, remove_tome.__doc__


def _base(given: dict[str, Any], config: ToMeConfig | str | Path | None) -> ToMeConfig | str | Path | None:
    """What the settings begin with; a ratio that is a preset or a config is taken out of those given."""
    ratio = to_python(given.get("ratio"))
    if isinstance(ratio, str) and ratio == "auto":
        raise ToMeValueError(
            "ratio='auto' is not a setting: apply_tome does not draw pictures to try settings. Call tune, as in "
            "found = ppdiffusers_tome.tune(pipe, call={'prompt': 'a cat'}, psnr=30), and then "
            "pipe.apply_tome(found.config)"
        )
    if not isinstance(ratio, ToMeConfig) and not is_preset(ratio):
        return config
    if config is not None:
        first = "a ToMeConfig" if isinstance(ratio, ToMeConfig) else f"the preset {str(ratio)!r}"
        second = "another ToMeConfig as config=" if isinstance(config, ToMeConfig) else f"config={truncated_repr(config)}"
        raise ToMeTypeError(
            f"{first} was given first and {second}; each holds all settings; give one of them, and single settings "
            "with it"
        )
    del given["ratio"]
    return ratio
