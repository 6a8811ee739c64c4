"""Files that are replaced on demand, and written whole. Imports no Paddle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from ppdiffusers_tome.errors import ToMeValueError


def prepare_folder(folder: Path, names: Iterable[str] = (), *, overwrite: bool) -> list[Path]:
    """Make a folder, and check that files can be written there.

    Args:
        folder: it is made where it does not exist.
        names: of the files.
        overwrite: replace existing files.

    Returns:
        The paths of the files.

    Raises:
        ToMeValueError: the folder cannot be written, or it holds something that must not be replaced.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise ToMeValueError(f"{folder} is a file; choose another folder") from error
    except OSError as error:
        raise ToMeValueError(f"{folder} cannot be written ({error.strerror}); choose another folder") from error
    paths = [folder / name for name in names]
    for path in paths:
        refuse_existing(path, overwrite=overwrite)
    return paths


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise a ``ToMeValueError`` if a file exists and must not be replaced."""
    if path.is_dir():
        raise ToMeValueError(f"{path} is a folder, so no file can be written there; choose another folder")
    if os.path.lexists(path) and not overwrite:
        raise ToMeValueError(f"{path} exists already; choose another folder, or replace it with overwrite=True")


def write_atomically(path: Path, write: Callable[[BinaryIO], Any], *, overwrite: bool) -> None:
    """Write a file beside its place, and rename it when complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # A file of a killed process with the same number; or a link, which would lead out of the folder.
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        refuse_existing(path, overwrite=overwrite)
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise ToMeValueError(f"{path} cannot be written ({reason}); make room or choose another folder") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a text file as ``write_atomically`` does."""
    write_atomically(path, lambda file: file.write(text.encode()), overwrite=overwrite)


def write_json(path: Path, content: Any, *, overwrite: bool) -> None:
    """Write plain values as JSON; NaN and infinity are a ``ValueError``."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", overwrite=overwrite)
