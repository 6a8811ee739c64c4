"""Files of an exported pipeline and the rules for replacing them. Imports no Paddle.

An export replaces or removes only files of an earlier export, by their names, in a folder whose ``export.json`` shows
that an export was written there. Files that describe an export without being part of a pipeline, which other commands
write too, are replaced in any folder except a model's own. All other files stay.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError

PROGRAM = "inference"
PROGRAM_SUFFIXES = (".pdmodel", ".json")  # of Paddle 2 and Paddle 3
PROGRAMS = ("text_encoder", "unet", "vae_encoder", "vae_decoder")
DENOISERS = ("unet", "controlnet")
INDEX, EXPORT = "model_index.json", "export.json"
SETTINGS, DENOISER_SETTINGS = "tome.json", {name: f"tome.{name}.json" for name in DENOISERS}
_DESCRIPTIONS = (EXPORT, SETTINGS, *DENOISER_SETTINGS.values())
# Every file of an export by either Paddle; other kinds of tokenizers have more files.
_FILES = (
    INDEX, *_DESCRIPTIONS, "scheduler/scheduler_config.json", "tokenizer/merges.txt",
    *(f"tokenizer/{name}.json" for name in ("added_tokens", "special_tokens_map", "tokenizer_config", "vocab")),
    *(f"{name}/{PROGRAM}{suffix}" for name in PROGRAMS
      for suffix in (*PROGRAM_SUFFIXES, ".pdiparams", ".pdiparams.info", ".onnx")),
)  # fmt: skip


def require_folder(folder: Path, names: Iterable[str] = (), *, overwrite: bool) -> None:
    """Make sure that an export can be written without losing other files.

    Args:
        folder: the folder of the export; created if absent.
        names: files to be written, as far as they are known.
        overwrite: whether an earlier export, and files that describe one, may be replaced.

    Raises:
        ToMeValueError: the folder holds something that must not be replaced.
        OSError: the folder cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ToMeValueError(f"{folder} is a file; choose another folder") from error
    with tempfile.TemporaryFile(dir=folder):
        pass  # else the folder cannot be written
    has_export = read_export(folder) is not None
    if os.path.lexists(folder / INDEX):
        index = _read_json(folder / INDEX)
        class_name = index.get("_class_name") if isinstance(index, dict) else None
        # The deploy pipelines' classes begin so; no model's own index names one.
        if not has_export or not str(class_name).startswith("PaddleInfer"):
            raise ToMeValueError(
                f"{folder} holds a {INDEX} that no export wrote ({class_name or 'without a class'}); an export would "
                "destroy that model, so not even overwrite=True replaces it; choose another folder"
            )
    files = list(dict.fromkeys([*_FILES, *names]))
    for path in sorted({folder / parent for name in files for parent in Path(name).parents if parent != Path()}):
        if path.is_symlink() or path.is_file():
            raise ToMeValueError(
                f"{path} is a link or a file, and an export writes a folder there; remove it, or choose another folder"
            )
    files.sort(key=_DESCRIPTIONS.__contains__)  # what belongs to no export is the worse obstacle
    for name in (name for name in files if os.path.lexists(folder / name)):
        if (folder / name).is_dir():
            raise ToMeValueError(f"{folder / name} is a folder, so no file can be written there; choose another folder")
        if name not in _DESCRIPTIONS and not has_export:
            raise ToMeValueError(
                f"{folder / name} belongs to no export, as {folder} has no {EXPORT} of one, and overwrite=True "
                "replaces only exports; choose another folder, or move the file away"
            )
        if not overwrite:
            raise ToMeValueError(
                f"{folder / name} exists already; choose another folder, or replace it with overwrite=True"
            )


def list_files(folder: Path) -> list[str]:
    """List the files of a folder and its subfolders by relative path."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def publish(work: Path, folder: Path, *, overwrite: bool) -> None:
    """Move a complete export into its folder, replacing an earlier one.

    ``model_index.json`` is removed first and moved last, so an incomplete export cannot be loaded.

    Args:
        work: the folder that holds the complete export, on the same disk.
        folder, overwrite: as for ``require_folder``.

    Raises:
        ToMeValueError: as ``require_folder``; nothing was changed.
        OSError: writing failed midway. ``export.json`` exists then, so the next export may overwrite the rest.
    """
    names = list_files(work)
    require_folder(folder, names, overwrite=overwrite)
    try:
        (folder / INDEX).unlink(missing_ok=True)
        (work / EXPORT).replace(folder / EXPORT)
        # A program of the other Paddle would be loaded in place of the new one, and settings would be out of date.
        for name in set(_FILES).difference(names):
            (folder / name).unlink(missing_ok=True)
        for name in [*(name for name in names if name not in (EXPORT, INDEX)), INDEX]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).replace(folder / name)
    except OSError as error:
        reason = f"{error.strerror or error}; the export there is incomplete and has no {INDEX}; export again with"
        raise OSError(error.errno, f"{reason} overwrite=True", str(folder)) from error


def read_export(folder: Path) -> dict[str, Any] | None:
    """Read what ``export.json`` says of an export, complete or not; None without an export."""
    export = _read_json(folder / EXPORT)
    # `bench export` writes another file of that name.
    return export if isinstance(export, dict) and isinstance(export.get("components"), list) else None


def _read_json(path: Path) -> Any:
    """Read a JSON file, or return None if that fails."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
