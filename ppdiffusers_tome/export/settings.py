"""Settings of the denoisers of an exported pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.export.layout import DENOISER_SETTINGS, DENOISERS, SETTINGS
from ppdiffusers_tome.export.requirements import require_exportable
from ppdiffusers_tome.patching.apply import AppliedBlocks, applied_tome
from ppdiffusers_tome.patching.blocks import find_blocks, select_blocks
from ppdiffusers_tome.patching.legacy_port import has_legacy_port
from ppdiffusers_tome.settings.config import ToMeConfig

_UNMERGED = ToMeConfig(0)


def list_denoisers(pipe: Any) -> dict[str, Any]:
    """Return the models of a pipeline that may merge, by name."""
    models = {name: getattr(pipe, name, None) for name in DENOISERS}
    return {name: model for name, model in models.items() if model is not None}


def require_all_exportable(denoisers: Mapping[str, Any]) -> None:
    """Refuse denoisers whose token merging cannot be part of a program.

    Raises:
        ToMeValueError: the settings of one, or ppdiffusers' own port, cannot be exported.
    """
    for name, model in denoisers.items():
        if has_legacy_port(model):
            raise ToMeValueError(
                f"ppdiffusers' own port of token merging is on {name} and cannot be exported; call remove_tome, or "
                "apply_tome in its place"
            )
        for entry in _entries(model):
            require_exportable(entry.config, name)


def describe_settings(denoisers: Mapping[str, Any]) -> dict[str, Any]:
    """Describe which blocks merge with which settings, for JSON; None without merging."""
    return {
        name: [{"settings": entry.config.to_dict(), "blocks": list(entry.paths)} for entry in _entries(model)] or None
        for name, model in denoisers.items()
    }


def settings_files(denoisers: Mapping[str, Any]) -> dict[str, ToMeConfig]:
    """Return the settings to save, by file name.

    Applying them merges exactly the blocks that merge now. There is one ``tome.json`` if one config does that for all
    denoisers, otherwise a file for each denoiser for which one config does. Ratio 0 means no merging.
    """
    config = _common_config(list(denoisers.values()))
    if config is not None:
        return {SETTINGS: config}
    configs = {DENOISER_SETTINGS[name]: _common_config([model]) for name, model in denoisers.items()}
    return {name: config for name, config in configs.items() if config is not None}


def _common_config(models: list[Any]) -> ToMeConfig | None:
    """Return the config that all models have in common, or None.

    Applying it merges exactly the blocks that merge now.
    """
    configs = {entry.config for model in models for entry in _entries(model)} or {_UNMERGED}
    config = next(iter(configs))
    return config if len(configs) == 1 and all(_selects_merging_blocks(config, model) for model in models) else None


def _selects_merging_blocks(config: ToMeConfig, model: Any) -> bool:
    """Return whether a config selects exactly the blocks that merge."""
    merging = {path for entry in _entries(model) for path in entry.paths}
    selected = {block.name for block in select_blocks(find_blocks(model), config)}
    return merging == selected or not (merging or config.ratio)


def _entries(model: Any) -> tuple[AppliedBlocks, ...]:
    applied = applied_tome(model)
    return () if applied is None else applied.entries
