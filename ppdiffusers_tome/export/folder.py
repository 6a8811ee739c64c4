"""The folder of an export: its needs and files. Imports no Paddle.

``export.json`` lists the files of its export, which another may replace. A folder with other files is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.files import prepare_folder, write_json
from ppdiffusers_tome.settings.config import ToMeConfig

TOLERANCE = 1e-4
PROGRAM = "inference"
PROGRAM_SUFFIXES = (".pdmodel", ".json")  # of Paddle 2 and Paddle 3
PROGRAMS = ("text_encoder", "unet", "vae_encoder", "vae_decoder")
INDEX, EXPORT = "model_index.json", "export.json"
SETTINGS = "tome.json"


def require_exportable(config: ToMeConfig) -> None:
    """Refuse settings that need values known only at run time.

    Raises:
        ToMeValueError: the settings cannot be exported.
    """
    if config.uses_progress or config.cache:
        raise ToMeValueError(
            "a ratio that changes over the denoising, start, end and cache cannot be exported: a program does the same "
            "in every step; give one ratio alone"
        )


def require_folder(folder: Path, *, overwrite: bool) -> None:
    """Make sure that an export can be written without losing other files.

    Raises:
        ToMeValueError: the folder cannot be written, or it holds more than an export that ``overwrite`` replaces.
    """
    prepare_folder(folder, overwrite=overwrite)
    found = _list_files(folder)
    if others := [name for name in found if name not in _list_exported(folder)]:
        raise ToMeValueError(
            f"{folder / others[0]} belongs to no earlier export, so not even overwrite=True replaces it; choose "
            "another folder, or move it away"
        )
    if found and not overwrite:
        raise ToMeValueError(f"{folder} has an export; choose another folder, or replace it with overwrite=True")


def publish(work: Path, folder: Path, description: dict[str, Any]) -> None:
    """Move a complete export into its folder, replacing an earlier one.

    ``model_index.json`` is removed first and moved last, so an incomplete export cannot be loaded. ``export.json`` is
    moved first, so the next export may overwrite the rest.

    Args:
        work: the folder that holds the complete export, on the same disk.
        folder: of the export, which ``require_folder`` allows.
        description: what ``export.json`` says of the export, beside its files.
    """
    names = _list_files(work)
    write_json(work / EXPORT, {**description, "files": [*names, EXPORT]}, overwrite=False)
    (folder / INDEX).unlink(missing_ok=True)
    # A program of the other Paddle would be loaded in place of the new one, and settings would be out of date.
    for name in _list_exported(folder).intersection(_list_files(folder)) - {EXPORT}:
        (folder / name).unlink()
    for name in [EXPORT, *(name for name in names if name != INDEX), INDEX]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).replace(folder / name)


def read_export(folder: Path) -> dict[str, Any] | None:
    """Read ``export.json`` of an export, complete or not; None without one."""
    try:
        export = json.loads((folder / EXPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return export if isinstance(export, dict) and isinstance(export.get("files"), list) else None


def _list_exported(folder: Path) -> set[str]:
    """List the files that ``export.json`` names, itself included."""
    export = read_export(folder)
    return set() if export is None else {str(name) for name in export["files"]}


def _list_files(folder: Path) -> list[str]:
    """List the files and links below a folder by relative path."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    return [path.relative_to(folder).as_posix() for path in found]
