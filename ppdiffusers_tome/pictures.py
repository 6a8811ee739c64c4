"""Picture files: predictable names, written whole or not at all, with the settings they were made with inside."""

from __future__ import annotations

import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ppdiffusers_tome.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

SETTINGS_KEY = "ppdiffusers_tome"
_MAX_SLUG = 60


def slug(text: str) -> str:
    """A prompt as part of a file name: ``A red circle!`` -> ``a-red-circle``."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return words[:_MAX_SLUG].rstrip("-") or "picture"


def picture_name(number: int, prompt: str) -> str:
    """The file name of a picture; ``number`` counts from 1."""
    return f"{number:04d}-{slug(prompt)}.png"


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
        _refuse_existing(path, overwrite, option)
    return paths


def write_picture(
    path: Path, picture: Image.Image, settings: Mapping[str, Any] | None = None, *, overwrite: bool = False
) -> None:
    """Write a PNG with its settings inside, as JSON in a ``tEXt`` chunk; see ``read_settings``.

    Raises:
        UserError: the file exists and must not be replaced, or cannot be written; no partial file is left.
    """
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    if settings is not None:
        chunks.add_text(SETTINGS_KEY, json.dumps(settings, sort_keys=True))
    write_whole(path, lambda file: picture.save(file, format="PNG", pnginfo=chunks), overwrite=overwrite)


def read_settings(path: Path) -> dict[str, Any]:
    """The settings a picture was made with.

    Raises:
        UserError: the picture holds none.
    """
    from PIL import Image

    with Image.open(path) as picture:
        text = picture.info.get(SETTINGS_KEY)
    if text is None:
        raise UserError(f"{path} holds no settings; it was not made by this program")
    return json.loads(text)


def write_whole(path: Path, write: Callable[[BinaryIO], Any], *, overwrite: bool) -> None:
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
