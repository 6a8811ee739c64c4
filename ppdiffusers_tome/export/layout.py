"""An exported pipeline in its folder: what it is made of, what may be replaced there, in which order. Knows no Paddle.

Nothing is ever replaced or removed but files of an export, known by their names, in a folder where an export is known
to have been: its ``export.json`` says so. Files that tell of an export but are no part of it, which other commands may
have written, are replaced in any folder but a model's own. Files of other names stay wherever they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.files import prepare_folder

PROGRAM = "inference"
PROGRAMS = ("text_encoder", "unet", "vae_encoder", "vae_decoder")
DENOISERS = ("unet", "controlnet")
INDEX, EXPORT = "model_index.json", "export.json"
SETTINGS, SETTINGS_OF = "tome.json", {name: f"tome.{name}.json" for name in DENOISERS}
# Of the pipelines' classes that load programs; no model's own index names one.
_DEPLOYED = "PaddleInfer"
# What says something of the rest, but is no part of a pipeline.
_BESIDE = (EXPORT, SETTINGS, *SETTINGS_OF.values())
# All that an export may be made of, whichever Paddle wrote it; tokenizers of other kinds have more files.
_FILES = (
    INDEX, *_BESIDE, "scheduler/scheduler_config.json",
    *(f"tokenizer/{name}.json" for name in ("added_tokens", "special_tokens_map", "tokenizer_config", "vocab")),
    "tokenizer/merges.txt",
    *(f"{part}/{PROGRAM}{end}" for part in PROGRAMS
      for end in (".pdmodel", ".json", ".pdiparams", ".pdiparams.info", ".onnx")),
)  # fmt: skip


def require_place(folder: Path, names: Iterable[str] = (), *, overwrite: bool) -> None:
    """Make sure, before any work starts, that an export can be put in a folder and nothing else gets lost there.

    Args:
        folder: where to; made where it does not exist.
        names: files that will be written, where they are known.
        overwrite: whether an earlier export, and files that tell of one, may be replaced.

    Raises:
        UserError: they cannot be written, or something is there that must not be replaced.
    """
    prepare_folder(folder, [], overwrite=overwrite)
    exported = _holds_export(folder)
    _refuse_model(folder, exported)
    files = list(dict.fromkeys([*_FILES, *names]))
    for parent in sorted({path for name in files for path in Path(name).parents if path != Path()}):
        _refuse_subfolder(folder / parent)
    there = [name for name in files if os.path.lexists(folder / name)]
    for name in there:
        if name not in _BESIDE and not exported:
            raise UserError(
                f"{folder / name} belongs to no export, as no {EXPORT} of one is in {folder}, and --overwrite replaces "
                "exports alone; choose another --output, or move it away"
            )
    prepare_folder(folder, there, overwrite=overwrite)
    if there and not overwrite:
        raise UserError(f"{folder / there[0]} is a link to nothing; remove it, or choose another --output")


def files_in(work: Path) -> list[str]:
    """The files of a folder and all folders in it, as paths from there."""
    return [path.relative_to(work).as_posix() for path in sorted(work.rglob("*")) if path.is_file()]


def put_in_place(work: Path, folder: Path, *, overwrite: bool) -> None:
    """Move a finished export where it belongs, in place of an earlier one; the file that makes it a pipeline is last.

    Args:
        work: what to move, on the same disk.
        folder, overwrite: as for ``require_place``.

    Raises:
        UserError: as ``require_place``, which leaves everything as it was; or writing failed midway. Then there is no
            ``model_index.json``, so that nobody takes what is there for a pipeline, but an ``export.json``, so that
            ``--overwrite`` may replace it.
    """
    names = files_in(work)
    require_place(folder, names, overwrite=overwrite)
    try:
        (folder / INDEX).unlink(missing_ok=True)
        (work / EXPORT).replace(folder / EXPORT)
        # A program of another Paddle would be loaded in place of the new one, and settings would be another export's.
        for name in _FILES:
            if name not in names:
                (folder / name).unlink(missing_ok=True)
        for name in [*(name for name in names if name not in (EXPORT, INDEX)), INDEX]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).replace(folder / name)
    except OSError as error:
        raise UserError(
            f"--output {folder} cannot be written ({error.strerror or error}), so what is there is unfinished and has "
            f"no {INDEX}; make room or allow writing, and give the same command with --overwrite"
        ) from error


def _holds_export(folder: Path) -> bool:
    """Whether an export was put here, finished or not. ``bench export`` writes a file of the same name."""
    told = _json(folder / EXPORT)
    return isinstance(told, dict) and isinstance(told.get("components"), list)


def _refuse_model(folder: Path, exported: bool) -> None:
    index = folder / INDEX
    if not os.path.lexists(index):
        return
    content = _json(index)
    kind = content.get("_class_name") if isinstance(content, dict) else None
    if not exported or not str(kind).startswith(_DEPLOYED):
        raise UserError(
            f"--output {folder} holds a {INDEX} that no export of this program wrote ({kind or 'of no class'}); an "
            "export in its place would destroy that model, so not even --overwrite does it; choose another --output"
        )


def _refuse_subfolder(path: Path) -> None:
    if path.is_symlink():
        raise UserError(
            f"{path} is a link, so files would be written and replaced elsewhere; remove it, or choose another --output"
        )
    if path.is_dir():
        prepare_folder(path, [], overwrite=True)
    elif path.exists():
        raise UserError(f"{path} is a file, and an export has a folder of that name; choose another --output")


def _json(path: Path) -> Any:
    """What a file holds; None where it is not there, or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
