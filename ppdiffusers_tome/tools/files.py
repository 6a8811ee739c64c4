"""Files written whole or not at all, into folders that are known to take them before work starts. Knows no Paddle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ppdiffusers_tome.errors import UserError


def prepare_folder(folder: Path, names: list[str], *, overwrite: bool, option: str = "--output") -> list[Path]:
    """Make sure, before any work starts, that files can be written.

    Args:
        folder: where to; made where it does not exist.
        names: the files that will be written.
        overwrite: whether existing files may be replaced.
        option: what the folder was given as, to be named in errors.

    Returns:
        The paths of the files.

    Raises:
        UserError: the folder cannot be made or written, or a file exists and must not be replaced.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise UserError(f"{option} {folder} is a file; give a folder") from error
    except OSError as error:
        raise UserError(
            f"{option} {folder} cannot be written ({error.strerror}); give a folder that you may write to"
        ) from error
    paths = [folder / name for name in names]
    for path in paths:
        try:
            os.fsencode(path)
        except UnicodeEncodeError as error:
            raise UserError(
                f"{path.name!a} cannot be the name of a file here, as names are in {error.encoding}; set the "
                "environment variable LC_ALL=C.UTF-8, or PYTHONUTF8=1"
            ) from error
    for path in paths:
        _refuse_existing(path, overwrite, option)
    return paths


def write_atomically(path: Path, write: Callable[[BinaryIO], Any], *, overwrite: bool) -> None:
    """Write a file whole or not at all: into a temporary file beside it, to the disk, and then rename.

    Raises:
        UserError: the file exists and must not be replaced, or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # What a process of the same number left when it was killed; or a link, which would lead out of the folder.
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        _refuse_existing(path, overwrite)
        temporary.replace(path)
        _keep_name(path.parent)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} cannot be written ({reason}); make room or choose another --output") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a text file whole or not at all.

    Raises:
        UserError: the file exists and must not be replaced, or cannot be written.
    """
    write_atomically(path, lambda file: file.write(text.encode()), overwrite=overwrite)


def write_json(path: Path, content: Any, *, overwrite: bool) -> None:
    """Write plain values as JSON, as ``write_text`` does; nan and infinity, which JSON does not know, are errors."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", overwrite=overwrite)


def _keep_name(folder: Path) -> None:
    """Should the power fail now, what was renamed keeps its new name; where a folder can be told so."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _refuse_existing(path: Path, overwrite: bool, option: str = "--output") -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder, so no file can be written there; choose another {option}")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already; choose another {option}, or replace it with --overwrite")
