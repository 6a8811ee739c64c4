"""Files that are replaced on demand, and written whole. Imports no Paddle."""

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from ppdiffusers_tome.errors import UserError


def prepare_folder(folder: Path, names: Iterable[str] = (), *, overwrite: bool) -> list[Path]:
    """Make a folder for files, and return their paths."""
    is_named_as_image = folder.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp", ".gif") and not folder.exists()
    if is_named_as_image or folder.is_file():
        raise UserError(f"--output {folder} names a file, and is to be a folder; give one such as outputs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another --output") from error
    paths = [folder / name for name in names]
    for path in paths:
        if os.path.lexists(path) and not overwrite:
            raise UserError(f"{path} exists already; choose another --output, or replace it with --overwrite")
    return paths


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file beside its place, and rename it when complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # A file of a killed process with the same number; or a link, which would lead out of the folder.
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} cannot be written ({reason}); make room or choose another --output") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file as ``write_atomically`` does."""
    write_atomically(path, lambda file: file.write(text.encode()))
