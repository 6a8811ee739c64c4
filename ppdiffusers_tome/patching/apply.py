"""The application, removal and report of settings on a pipeline or model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ppdiffusers_tome.errors import NothingToMergeError, ToMeValueError
from ppdiffusers_tome.patching import checks
from ppdiffusers_tome.patching.attach import attach, detach, list_attached_blocks
from ppdiffusers_tome.patching.blocks import find_blocks, select_blocks
from ppdiffusers_tome.patching.call_stack import CHANGE_LOCK
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.override import walk_overrides
from ppdiffusers_tome.patching.overrides.denoiser import DenoiserOverride
from ppdiffusers_tome.patching.paddle_compat import require_untraced
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState, StepReport
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import format_count

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
                f"there is no single config, as settings differ: {self}. Look at .entries, which has the denoiser, the "
                "config and the paths of each, or call apply_tome on the whole pipeline or model, so that all have one"
            )
        return self.entries[0].config

    @property
    def blocks(self) -> dict[str, int]:
        """The number of merging blocks by denoiser: ``{"unet": 16}``, or ``""``."""
        names = [entry.denoiser for entry in self.entries for _ in entry.paths]
        return {name: names.count(name) for name in names}

    def __str__(self) -> str:
        return "; ".join(
            f"{entry.denoiser or 'the model'} has {entry.config.summary} in {format_count(len(entry.paths), 'block')}"
            for entry in self.entries
        )


def apply_config(model_or_pipe: T, config: ToMeConfig) -> T:
    """Apply validated settings; see ``apply_tome``."""
    denoisers = list(list_models(model_or_pipe))
    chosen = [select_blocks(find_blocks(layer), config) for _, layer in denoisers]
    blocks = [block for of_model in chosen for block in of_model]
    if not blocks:
        raise NothingToMergeError(checks.explain_no_block(model_or_pipe, denoisers, config))
    for denoiser in dict.fromkeys(block.denoiser for block in blocks):
        checks.require_whole(denoiser)
        checks.require_computable(denoiser)
    for _, denoiser in denoisers:
        for layer in denoiser.sublayers(include_self=True):
            require_untraced(layer)
    checks.require_no_foreign_cache(blocks, config)
    checks.require_frames(blocks, config)
    checks.warn_of_settings(blocks, config)
    checks.warn_of_schedulers(model_or_pipe, config)
    with CHANGE_LOCK:
        remove_tome(model_or_pipe)  # which refuses before it changes anything; nothing can fail after it
        for of_model in chosen:
            attach(of_model, config)
    return model_or_pipe


@contextmanager
def keep_applied(model_or_pipe: Any) -> Iterator[None]:
    """Apply again, at the end of a ``with`` statement, what is applied now."""
    # A denoiser may be in two models.
    overrides = dict.fromkeys(each for _, layer in list_models(model_or_pipe) for each in walk_overrides(layer))
    before = [each for each in overrides if isinstance(each, DenoiserOverride)]
    try:
        yield
    finally:
        with CHANGE_LOCK:
            remove_tome(model_or_pipe)
            for override in before:
                attach(override.blocks, override.state.config)


def remove_tome(model_or_pipe: T) -> T:
    """Remove ToMe from a pipeline or model, which is then as before.

    Args:
        model_or_pipe: as for ``apply_tome``; one without ToMe does not change.

    Returns:
        ``model_or_pipe``.

    Raises:
        ToMeTypeError: it is neither a pipeline nor a model.
        ToMeValueError: it is a part of a model with ToMe, or one of its calls runs.
    """
    # The port marks text encoders too, so all models are searched, not only those that denoise.
    layers = [layer for _, layer in list_models(model_or_pipe, denoisers_only=False)]
    with CHANGE_LOCK:
        for layer in layers:
            overrides = list(walk_overrides(layer))
            if overrides and not any(isinstance(each, DenoiserOverride) for each in overrides):
                checks.require_whole(layer)
            checks.require_unused(layer, overrides)
        for layer in layers:
            _remove_port(layer)  # first, as it may have come after ToMe
            detach(layer)
    return model_or_pipe


def get_tome(model_or_pipe: Any) -> AppliedToMe | None:
    """Return ToMe's settings and blocks on a pipeline or model, or None."""
    entries: list[AppliedBlocks] = []
    seen: set[int] = set()
    for name, model in list_models(model_or_pipe):
        found: dict[ToMeConfig, list[tuple[str, DenoiserState]]] = {}
        for path, layer, override in list_attached_blocks(model):
            # Two models may hold the same layers (Versatile Diffusion's UNets).
            if id(layer) not in seen:
                seen.add(id(layer))
                found.setdefault(override.state.config, []).append((path, override.state))
        for config, blocks in found.items():
            states = dict.fromkeys(state for _, state in blocks)  # several ControlNets may have one config
            reports = [state.last_image for state in states if state.last_image is not None]
            last_image = sum(reports[1:], reports[0]) if reports else None
            entries.append(AppliedBlocks(name, config, tuple(path for path, _ in blocks), last_image))
    return AppliedToMe(tuple(entries)) if entries else None


def _remove_port(model: Any) -> None:
    """Restore the classes and attributes that ppdiffusers' port of tomesd changed."""
    for layer in model.sublayers(include_self=True):
        info = vars(layer).get("_tome_info")
        if info is None:
            continue
        for hook in info["hooks"]:
            # Not by remove(): in a deep copy that would remove it from the original.
            layer._forward_pre_hooks.pop(hook._hook_id, None)
        if type(layer).__name__.startswith("ToMe") and "_parent" in vars(type(layer)):
            layer.__class__ = vars(type(layer))["_parent"]
        del layer._tome_info
