"""Files that are written completely or not at all. Imports no Paddle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ppdiffusers_tome.errors import UserError


def prepare_folder(folder: Path, names: list[str], *, overwrite: bool) -> list[Path]:
    """Make the folder of ``--output`` and check that files can be written.

    Args:
        folder: it is made where it does not exist.
        names: of the files.
        overwrite: replace existing files.

    Returns:
        The paths of the files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise UserError(f"--output {folder} is a file; give a folder") from error
    except OSError as error:
        raise UserError(
            f"--output {folder} cannot be written ({error.strerror}); give a folder that you may write to"
        ) from error
    paths = [folder / name for name in names]
    for path in paths:
        refuse_existing(path, overwrite)
    return paths


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise a ``UserError`` if a file exists and must not be replaced."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, so no file can be written there; choose another --output")
    if (path.exists() or path.is_symlink()) and not overwrite:
        raise UserError(f"{path} exists already; choose another --output, or replace it with --overwrite")


def write_atomically(path: Path, write: Callable[[BinaryIO], Any], *, overwrite: bool) -> None:
    """Write a file beside its place, flush it to the disk, and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # A file of a killed process with the same number; or a link, which would lead out of the folder.
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        refuse_existing(path, overwrite)
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} cannot be written ({reason}); make room or choose another --output") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a text file as ``write_atomically`` does."""
    write_atomically(path, lambda file: file.write(text.encode()), overwrite=overwrite)


def write_json(path: Path, content: Any, *, overwrite: bool) -> None:
    """Write plain values as JSON; NaN and infinity are a ``ValueError``."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", overwrite=overwrite)
