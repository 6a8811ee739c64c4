"""Settings of the denoisers of an exported pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.export.layout import DENOISER_SETTINGS, DENOISERS, SETTINGS
from ppdiffusers_tome.export.requirements import require_exportable
from ppdiffusers_tome.patching.apply import AppliedBlocks, applied_tome
from ppdiffusers_tome.patching.blocks import find_blocks, select_blocks
from ppdiffusers_tome.patching.legacy_port import has_legacy_port
from ppdiffusers_tome.settings.config import ToMeConfig


def list_denoisers(pipe: Any) -> dict[str, Any]:
    """Return the models of a pipeline that may merge, by name.

    Raises:
        ToMeValueError: the settings of one, or ppdiffusers' own port, cannot be part of a program.
    """
    models = {name: model for name in DENOISERS if (model := getattr(pipe, name, None)) is not None}
    for name, model in models.items():
        if has_legacy_port(model):
            raise ToMeValueError(
                f"ppdiffusers' own port of token merging is on {name} and cannot be exported; call remove_tome, or "
                "apply_tome in its place"
            )
        for entry in _entries(model):
            require_exportable(entry.config, name)
    return models


def describe_settings(denoisers: Mapping[str, Any]) -> dict[str, Any]:
    """Describe which blocks merge with which settings, for JSON; None without merging."""
    return {
        name: [{"settings": entry.config.to_dict(), "blocks": list(entry.paths)} for entry in _entries(model)] or None
        for name, model in denoisers.items()
    }


def list_settings_files(denoisers: Mapping[str, Any]) -> dict[str, ToMeConfig]:
    """Return the settings to save, by file name.

    Applying them merges exactly the blocks that merge now. There is one ``tome.json`` if one config does that for all
    denoisers, otherwise a file for each denoiser for which one config does. Ratio 0 means no merging.
    """
    config = _find_common_config(denoisers.values())
    if config is not None:
        return {SETTINGS: config}
    configs = {DENOISER_SETTINGS[name]: _find_common_config([model]) for name, model in denoisers.items()}
    return {name: config for name, config in configs.items() if config is not None}


def _find_common_config(models: Iterable[Any]) -> ToMeConfig | None:
    """Find the config that merges exactly the blocks that merge now."""
    models = list(models)
    config, *others = {entry.config for model in models for entry in _entries(model)} or {ToMeConfig(0)}
    for model in models:
        merging = {path for entry in _entries(model) for path in entry.paths}
        selected = {block.name for block in select_blocks(find_blocks(model), config)}
        if merging != selected and (merging or config.ratio):
            return None
    return None if others else config


def _entries(model: Any) -> tuple[AppliedBlocks, ...]:
    applied = applied_tome(model)
    return () if applied is None else applied.entries
