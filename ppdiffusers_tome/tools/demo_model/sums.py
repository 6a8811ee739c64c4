"""The bundled weights are the very files that were published: each has its SHA-256 in ``SHA256SUMS`` beside it.

The sums are those that ``sha256sum -c`` reads. Against whoever can write to the package they are no help; they tell a
download that was cut off, a disk that fails, and a file that strayed in.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from ppdiffusers_tome.errors import UserError

SUMS = "SHA256SUMS"


@lru_cache(maxsize=8)
def check_sums(folder: Path) -> None:
    """Compare every file of a bundled model with its sum, once a process.

    Raises:
        UserError: a file is missing, differs, or is none of the model's; files whose names begin with a dot are none
            that loading would read.
    """
    sums = _sums(folder)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for name in sorted(sums.keys() - found):
        raise _broken(folder / name, "is missing")
    for name in sorted(found - sums.keys() - {SUMS}):
        if not Path(name).name.startswith("."):
            raise _broken(folder / name, "does not belong there")
    for name, expected in sums.items():
        if _digest(folder / name) != expected:
            raise _broken(folder / name, f"is damaged: its SHA-256 is not the one in {SUMS}")


def _sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file, by its path in the folder."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise _broken(folder / SUMS, f"cannot be read ({error})") from error


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise _broken(path, f"cannot be read ({error.strerror})") from error


def _broken(path: Path, what: str) -> UserError:
    return UserError(
        f"{path} of the bundled model {what}; install the package again: "
        "pip install --force-reinstall --no-deps ppdiffusers-tome"
    )
