"""What the models of an exported pipeline merge with: checked, told in ``export.json``, and written as settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.export.checks import require_exportable
from ppdiffusers_tome.export.layout import DENOISERS, SETTINGS, SETTINGS_OF
from ppdiffusers_tome.patching.apply import AppliedBlocks, applied_tome
from ppdiffusers_tome.patching.blocks import find_blocks, select_blocks
from ppdiffusers_tome.patching.legacy_port import has_legacy_port
from ppdiffusers_tome.settings.config import ToMeConfig

_UNMERGED = ToMeConfig(0)


def denoisers_of(pipe: Any) -> dict[str, Any]:
    """The models of a pipeline that may merge and become part of a program, by name."""
    found = {name: getattr(pipe, name, None) for name in DENOISERS}
    return {name: model for name, model in found.items() if model is not None}


def require_all_exportable(models: Mapping[str, Any]) -> None:
    """Whatever the models merge with can become part of a program.

    Raises:
        ToMeValueError: something cannot.
    """
    for name, model in models.items():
        if has_legacy_port(model):
            raise ToMeValueError(
                f"ppdiffusers' own port of token merging is on {name}, and it cannot be exported; call remove_tome, or "
                "apply_tome in its place"
            )
        for entry in _entries(model):
            require_exportable(entry.config, f" of {name}")


def applied_settings(models: Mapping[str, Any]) -> dict[str, Any]:
    """By model, as plain values, which blocks merge with which settings; None for a model that does not merge."""
    return {
        name: [{"settings": entry.config.to_dict(), "blocks": list(entry.paths)} for entry in _entries(model)] or None
        for name, model in models.items()
    }


def settings_files(models: Mapping[str, Any]) -> dict[str, ToMeConfig]:
    """Settings under the names of their files, such that applying them merges what merges now.

    ``tome.json`` for all models, where there are such settings; otherwise a file for each model for which there are.
    Ratio 0 stands for a model that does not merge.
    """
    common = _common(list(models.values()))
    if common is not None:
        return {SETTINGS: common}
    each = {SETTINGS_OF[name]: _common([model]) for name, model in models.items()}
    return {name: config for name, config in each.items() if config is not None}


def _common(models: list[Any]) -> ToMeConfig | None:
    """The settings that give every one of the models the blocks that merge now, or None."""
    configs = {entry.config for model in models for entry in _entries(model)} or {_UNMERGED}
    config = next(iter(configs))
    return config if len(configs) == 1 and all(_gives(config, model) for model in models) else None


def _gives(config: ToMeConfig, model: Any) -> bool:
    """Whether what merges in a model is what these settings reach, no less; ratio 0 may reach what it likes."""
    merging = {path for entry in _entries(model) for path in entry.paths}
    return merging == {site.name for site in select_blocks(find_blocks(model), config)} or not (merging or config.ratio)


def _entries(model: Any) -> tuple[AppliedBlocks, ...]:
    applied = applied_tome(model)
    return () if applied is None else applied.entries
