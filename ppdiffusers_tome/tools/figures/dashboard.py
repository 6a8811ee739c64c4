"""Pictures as records of VisualDL, Paddle's own dashboard. It is imported only by those who ask for it."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

# VisualDL knows its files by this word, and shows only one of a folder, the last by name.
_MARK = "vdlrecords"
_NAME = f"{_MARK}.visualize.log"


def prepare_records(folder: Path, *, overwrite: bool) -> Path:
    """Make sure, before any work starts, that records can be written.

    Args:
        folder: where to; made where it does not exist.
        overwrite: whether records that this program wrote may be replaced.

    Returns:
        The path of the file.

    Raises:
        UserError: VisualDL is not installed, the folder cannot be written, or it holds records already.
    """
    from ppdiffusers_tome.tools.files import prepare_folder

    if importlib.util.find_spec("visualdl") is None:
        raise UserError("--visualdl needs the package visualdl; install it with: pip install visualdl")
    others = [path.name for path in folder.glob(f"*{_MARK}*") if path.name != _NAME]
    if others:
        raise UserError(
            f"--visualdl {folder} holds {others[0]}, and VisualDL shows one file of records a folder; give a separate "
            f"folder, such as {folder / 'tome'}"
        )
    return prepare_folder(folder, [_NAME], overwrite=overwrite, option="--visualdl")[0]


def write_records(path: Path, pictures: Iterable[tuple[str, int, Image.Image]], *, overwrite: bool) -> None:
    """Write pictures as VisualDL's image records.

    Args:
        path: from ``prepare_records``.
        pictures: the tag of each, its step and itself.
        overwrite: whether the file may be replaced.
    """
    import numpy as np
    from visualdl import LogWriter

    from ppdiffusers_tome.tools.files import write_atomically

    with tempfile.TemporaryDirectory() as folder:
        with LogWriter(logdir=folder, file_name=_NAME) as writer:
            for tag, step, picture in pictures:
                writer.add_image(tag, np.asarray(picture.convert("RGB")), step)
        written = (Path(folder) / _NAME).read_bytes()
    write_atomically(path, lambda file: file.write(written), overwrite=overwrite)
