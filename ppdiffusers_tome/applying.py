"""Apply settings to a pipeline or model, take them off, and see what is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ppdiffusers_tome.blocks.adapter import ROLES
from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.errors import NothingToMergeError
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


def apply_config(model_or_pipe: T, config: ToMeConfig) -> T:
    """``apply_tome`` with settings that are checked already; the same errors, and the same promise."""
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
