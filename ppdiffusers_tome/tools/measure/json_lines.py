"""Files with a JSON object a line, which a process that is killed at any moment leaves readable. Knows no Paddle.

The results of benchmarks and evaluations, and what the ranks of a run have finished, are kept so. Two rules hold. A
line that is not whole is warned of and skipped, wherever it stands. And a file has one writer at a time on all machines
that see it: several ranks write a part each, which rank 0 takes into the file itself.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ppdiffusers_tome.errors import UserError

if TYPE_CHECKING:
    from filelock import BaseFileLock

W = TypeVar("W", bound="Writer")

_MOST_NAMED = 5  # of the lines that are not whole
# What file systems without locks answer; a second writer is not noticed there.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, in its order; none where there is no file.

    A line that was cut off, or damaged as power failed, or that two writers have mixed, is skipped; a warning names the
    file and the line. Whatever is built on these files does again what it finds no line of.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); choose another --output") from error
    lines: list[dict[str, Any]] = []
    torn: list[int] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            lines.append(value)
        else:
            torn.append(number)
    if torn:
        warnings.warn(_torn_lines(path, torn), stacklevel=2)
    return lines


class Writer:
    """The one process that adds to a file, until it closes this or ends.

    The lock is a file of its own beside it, ``.NAME.lock``, which is gone when this is closed; one that a killed
    process left there locks nothing.

    Args:
        path: the file; made where it does not exist.

    Raises:
        UserError: another process writes to it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_symlink():  # in a folder that somebody else filled it may lead to any file of the user's
            raise UserError(f"{path} is a link, and nothing is added to what it leads to; choose another --output")
        self._lock: BaseFileLock | None = None
        self._closed = False
        try:
            self._lock = _locked(path)
            with path.open("ab"):
                pass
        except OSError as error:
            self.close()
            reason = error.strerror or error
            raise UserError(f"{path} cannot be written ({reason}); choose another --output") from error

    def add(self, *lines: Mapping[str, Any]) -> None:
        """Append lines; they are on the disk when this returns.

        Raises:
            UserError: they cannot be written; the file is then as it was.
        """
        assert not self._closed, "the file is closed"
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        try:
            with self.path.open("ab+", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                if before:  # behind a line that was cut off this one would be lost as well
                    file.seek(before - 1)
                    content = content if file.read(1) == b"\n" else b"\n" + content
                try:
                    written = 0
                    while written < len(content):
                        written += file.write(content[written:]) or 0
                    os.fsync(file.fileno())
                except OSError:
                    with suppress(OSError):
                        file.truncate(before)
                    raise
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); make room and give the same command again, which "
                "resumes from here"
            ) from error

    def empty(self) -> None:
        """Forget what the file says."""
        os.truncate(self.path, 0)

    def close(self) -> None:
        """Let others have it; closing it again does nothing."""
        self._closed = True
        if self._lock is not None:
            # While it is still held: whoever waits for it finds its file gone and makes a new one. Where a file in use
            # cannot be removed, on Windows, filelock removes it itself.
            with suppress(OSError):
                os.unlink(self._lock.lock_file)
            self._lock.release()
            self._lock = None

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def part_of(path: Path, rank: int) -> Path:
    """The file that a rank writes what belongs into a file: ``manifest.jsonl`` -> ``manifest.part-0001.jsonl``."""
    return path.with_name(f"{path.stem}.part-{rank:04d}{path.suffix}")


def parts_of(path: Path) -> list[Path]:
    """The parts of a file that are there, in the order of their ranks."""
    return sorted(path.parent.glob(f"{path.stem}.part-*{path.suffix}"))


def refuse_writers(path: Path, own: Path) -> None:
    """Make sure that nobody but the caller writes to a part of a file, and clear locks away that killed ones left.

    Args:
        path: the file that the parts belong to.
        own: what the caller itself writes to.

    Raises:
        UserError: another process writes to a part.
    """
    locks = path.parent.glob(f".{path.stem}.part-*{path.suffix}.lock")
    locked = {lock.with_name(lock.name[1:].removesuffix(".lock")) for lock in locks}
    for part in sorted({*parts_of(path), *locked} - {own}):
        Writer(part).close()


def _locked(path: Path) -> BaseFileLock | None:
    """The lock of a file, held; None where the file system has no locks.

    Raises:
        UserError: another process holds it.
        OSError: there cannot be one.
    """
    from filelock import FileLock, Timeout  # takes as long as all that `--help` needs besides

    # Not its stand-in for file systems without locks: that stays locked when its holder is killed on another machine.
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(f"another run writes to {path}; wait until it has ended, or choose another --output") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        with suppress(OSError):
            os.unlink(lock.lock_file)
        return None
    return lock


def _torn_lines(path: Path, torn: list[int]) -> str:
    named = ", ".join(map(str, torn[:_MOST_NAMED]))
    if len(torn) > _MOST_NAMED:
        named += f" and {len(torn) - _MOST_NAMED} more"
    if len(torn) == 1:
        return f"{path}, line {named} is incomplete, as after a killed process; it is skipped"
    return f"{path}, lines {named} are incomplete, as after killed processes; they are skipped"
