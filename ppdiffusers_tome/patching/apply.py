"""The application, removal and report of settings on a pipeline or model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ppdiffusers_tome.errors import NothingToMergeError, ToMeValueError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, ROLES, MergePoint
from ppdiffusers_tome.patching.attach import (
    attach,
    detach,
    list_attached_blocks,
    list_attached_denoisers,
    require_unused,
)
from ppdiffusers_tome.patching.blocks import (
    MergeableBlock,
    accepts_key_bias,
    find_blocks,
    find_family,
    find_layer,
    select_blocks,
)
from ppdiffusers_tome.patching.layer_class import is_overridden, walk_overrides
from ppdiffusers_tome.patching.legacy_port import remove_legacy_port
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.paddle_compat import require_whole_graph
from ppdiffusers_tome.patching.state.call_stack import CHANGES
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.step_cache import StepReport
from ppdiffusers_tome.patching.unsupported import find_refusal_inside
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import HIGHEST_SHARE, UNET

if TYPE_CHECKING:
    from paddle.nn import Layer

T = TypeVar("T")


@dataclass(frozen=True)
class AppliedBlocks:
    """Blocks of one denoiser that merge with the same settings.

    Attributes:
        denoiser: its name in the pipeline, ``unet``; "" for a model.
        config: the settings.
        paths: of the blocks in the denoiser, ``down_blocks.0.attentions.0.transformer_blocks.0``; one or more.
        last_image: computed and skipped steps of the last image, with a cache over steps; None before.
    """

    denoiser: str
    config: ToMeConfig
    paths: tuple[str, ...]
    last_image: StepReport | None = field(default=None, compare=False)

    def __str__(self) -> str:
        several = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.denoiser or 'the model'} has {self.config.summary} at {self.paths[0] or 'itself'}{several}"


@dataclass(frozen=True)
class AppliedToMe:
    """The settings and blocks of ToMe on a pipeline or model.

    Attributes:
        entries: one per denoiser and settings; denoisers that do not merge have none.
    """

    entries: tuple[AppliedBlocks, ...]

    @property
    def config(self) -> ToMeConfig:
        """The settings of all blocks that merge.

        Raises:
            ToMeValueError: blocks have different settings.
        """
        if any(entry.config != self.entries[0].config for entry in self.entries):
            raise ToMeValueError(
                f"there is no single config, as settings differ: {'; '.join(map(str, self.entries))}. Look at "
                ".entries, which has the denoiser, the config and the paths of each, or call apply_tome on the whole "
                "pipeline or model, so that all have one"
            )
        return self.entries[0].config

    @property
    def blocks(self) -> dict[str, int]:
        """The number of merging blocks by denoiser: ``{"unet": 16}``, or ``""``."""
        found: dict[str, int] = {}
        for entry in self.entries:
            found[entry.denoiser] = found.get(entry.denoiser, 0) + len(entry.paths)
        return found

    @property
    def num_blocks(self) -> int:
        """The number of merging blocks in all denoisers."""
        return sum(len(entry.paths) for entry in self.entries)

    def __str__(self) -> str:
        return "; ".join(
            f"{entry.denoiser or 'the model'} has {entry.config.summary} in {len(entry.paths)} "
            f"block{'s' if len(entry.paths) > 1 else ''}"
            for entry in self.entries
        )


def apply_config(model_or_pipe: T, config: ToMeConfig) -> T:
    """Apply validated settings; see ``apply_tome``."""
    denoisers = list(list_models(model_or_pipe))
    plan = [(layer, select_blocks(find_blocks(layer), config)) for _, layer in denoisers]
    if not any(chosen for _, chosen in plan):
        raise NothingToMergeError(_explain(model_or_pipe, denoisers, config))
    for _, layer in denoisers:
        for part in layer.sublayers(include_self=True):
            _require_plain_forward(part)
    _check_settings([block for _, chosen in plan for block in chosen], config)
    _log_advice(config, [block for _, chosen in plan for block in chosen])
    with CHANGES:
        for _, layer in denoisers:
            require_unused(layer)
        # Nothing was touched before this line and nothing can fail after it.
        remove_tome(model_or_pipe)
        for layer, chosen in plan:
            if chosen:
                attach(layer, chosen, config)
    return model_or_pipe


@contextmanager
def keep_applied(model_or_pipe: Any) -> Iterator[None]:
    """Restore afterwards what is applied now, also if the block raises."""
    before = [(layer, list_attached_denoisers(layer)) for _, layer in list_models(model_or_pipe)]
    try:
        yield
    finally:
        with CHANGES:
            remove_tome(model_or_pipe)
            for layer, attached in before:
                for blocks, config in attached:
                    attach(layer, blocks, config)


def remove_tome(model_or_pipe: T) -> T:
    """Remove token merging from a pipeline, model or part of one.

    The model is exactly as it was before. Of a part of a model, ``cache`` ends for its whole denoiser, too.

    Args:
        model_or_pipe: as for ``apply_tome``; one without ToMe does not change.

    Returns:
        ``model_or_pipe``.

    Raises:
        ToMeTypeError: it is neither a pipeline nor a model.
        ToMeValueError: it is in use: one of its calls runs, or another thread generates an image with it.
    """
    # The port marks text encoders too, so all models are searched, not only those that denoise.
    layers = [layer for _, layer in list_models(model_or_pipe, denoisers_only=False)]
    with CHANGES:
        for layer in layers:
            if any(True for _ in walk_overrides(layer)):
                require_unused(layer)
        for layer in layers:
            detach(layer)
            remove_legacy_port(layer)
    return model_or_pipe


def applied_tome(model_or_pipe: Any) -> AppliedToMe | None:
    """Return ToMe's settings and blocks on a pipeline or model, or None."""
    entries: list[AppliedBlocks] = []
    seen: set[int] = set()
    for name, layer in list_models(model_or_pipe):
        paths: dict[ToMeConfig, list[str]] = {}
        states: dict[ToMeConfig, dict[DenoiserState, None]] = {}  # several ControlNets may have one config
        for path, block, override in list_attached_blocks(layer):
            # Two models may hold the same layers (Versatile Diffusion's UNets).
            if id(block) not in seen:
                seen.add(id(block))
                config = override.state.config
                paths.setdefault(config, []).append(path)
                states.setdefault(config, {})[override.state] = None
        for config, found in paths.items():
            reports = [report for report in (each.last_image for each in states[config]) if report is not None]
            last_image = sum(reports[1:], reports[0]) if reports else None
            entries.append(AppliedBlocks(name, config, tuple(found), last_image))
    return AppliedToMe(tuple(entries)) if entries else None


def _check_settings(blocks: list[MergeableBlock], config: ToMeConfig) -> None:
    """Check that blocks support ``proportional`` and a stride over frames.

    Raises:
        NothingToMergeError: no attention takes a mask for ``proportional``, or some attention is within one frame.
    """
    attentions = [(block, point) for block in blocks for role, point in block.points(config) if role == ATTENTION]
    if config.proportional and not any(_accepts_group_sizes(block, point, config) for block, point in attentions):
        raise NothingToMergeError(
            f"proportional=True has no effect here, as the attention of {type(blocks[0].block).__name__} takes no "
            "mask, which would carry how many tokens each key stands for; leave it at None"
        )
    single = next((block for block in blocks if block.adapter.frames_axis is None), None)
    if config.st > 1 and single is not None:
        raise NothingToMergeError(
            f"st={config.st} merges tokens of several frames, and the attention of {type(single.block).__name__} "
            f"({single.name or 'the block itself'}) is within one image or frame; leave st at 1"
        )


def _require_plain_forward(layer: Layer) -> None:
    """Refuse what must come after ToMe, around what merges.

    Raises:
        ToMeValueError: ``paddle.jit.to_static`` without ``full_graph`` on Paddle 2.6, or Pyramid Attention Broadcast.
    """
    require_whole_graph(vars(layer).get("forward"))
    hooks = getattr(vars(layer).get("_diffusers_hook"), "hooks", {}).values()
    if not is_overridden(layer) and any(hasattr(getattr(hook, "state", None), "cache") for hook in hooks):
        raise ToMeValueError(
            f"{type(layer).__name__} has a cache over steps of ppdiffusers, which would keep merged tokens; call "
            "disable_cache() before apply_tome, and enable_cache(...) after it"
        )


def _log_advice(config: ToMeConfig, blocks: list[MergeableBlock]) -> None:
    """Log once where settings keep less than fewer steps do, by docs/en/results/step-caches.md."""
    preset = config.preset_name
    for denoiser in {id(block.denoiser): block.denoiser for block in blocks}.values():
        family, name = find_family(denoiser), type(denoiser).__name__
        if family != UNET and preset is not None:
            _log_once(
                f"the preset {preset!r} is not advised for {name}, a {family}: fewer steps keep more of its images in "
                "the same time; ratio 0 with cache=0.2 keeps more than they do (docs/en/guides/settings.md)"
            )
        if isinstance(config.cache, float) and config.cache > HIGHEST_SHARE:
            _log_once(
                f"cache={config.cache:g} skips over {HIGHEST_SHARE:g} of the steps of {name}, a {family}, at which "
                "some images keep less than with fewer steps; give less, or let ppdiffusers_tome.tune choose the steps"
            )


@cache
def _log_once(message: str) -> None:
    logging.getLogger("ppdiffusers_tome").warning("ToMe: %s", message)


def _accepts_group_sizes(block: MergeableBlock, point: MergePoint, config: ToMeConfig) -> bool:
    """Return whether attention of a point can weight keys by group size."""
    if point.mask or not point.has_prepared_mask:
        return bool(point.mask)
    # Attention that merges inside asks for its mask before its tokens merge; keys are known by then.
    if point.merges_inside and not METHODS[config.method].keeps_queries:
        return False
    return accepts_key_bias(find_layer(block.block, point.layer))


def _explain(model_or_pipe: Any, denoisers: list[tuple[str, Layer]], config: ToMeConfig) -> str:
    """Return the message of the error that nothing merges, with its cause."""
    name = type(model_or_pipe).__name__
    blocks = [block for _, layer in denoisers for block in find_blocks(layer)]
    if not blocks:
        models = ", ".join(f"{key} ({type(layer).__name__})" if key else name for key, layer in denoisers)
        reasons = {type(layer).__name__: find_refusal_inside(layer) for _, layer in denoisers}
        why = "".join(f". {cls}: {reason}" for cls, reason in reasons.items() if reason)
        return (
            f"{name} has nothing to merge: looked at {models or 'no model'} and found no block on a grid of image "
            f"tokens{why}. Apply ToMe to a denoiser that has such blocks (a UNet, a ControlNet, a diffusion "
            "transformer), or to the pipeline that holds one; `ppdiffusers-tome doctor` lists which have"
        )
    levels = ", ".join(str(level) for level in sorted({block.level for block in blocks if block.points(config)}))
    if levels:
        setting = f"max_downsample={config.max_downsample}" if config.levels is None else f"ratio={config.ratio}"
        return f"{name} has nothing to merge at the levels of {setting}; its blocks are at {levels}, so give one"
    if METHODS[config.method].keeps_queries and config.merge_attn:
        return (
            f"{name} has nothing to merge with method={config.method!r}: no block of it makes keys and values of its "
            "tokens by layers of their own; choose another method"
        )
    flags = ", ".join(f"{role}=True" for role in ROLES if getattr(config, role))
    return (
        f"{name} has nothing to merge: no block of it has the sublayer that {flags} merges around; try merge_attn=True"
    )
