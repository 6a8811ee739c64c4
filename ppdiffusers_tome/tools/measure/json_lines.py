"""Files with one JSON object per line, which stay readable when a process is killed at any moment.

A line that is incomplete is skipped with a warning. A file has one writer at a time, on all machines that see it.
This module imports no Paddle.
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

_MAX_NAMED_LINES = 5
# Errors of file systems without locks, where a second writer is not noticed.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file in their order; none if there is no file.

    Incomplete lines, as after a killed process or a power failure, are skipped with a warning.

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
        warnings.warn(_format_torn_lines(path, torn), stacklevel=2)
    return lines


class Writer:
    """The only process that adds to a file, until it closes this or ends.

    The lock is a file beside it, ``.NAME.lock``; the lock file of a killed process locks nothing.

    Args:
        path: the file; created if it does not exist.

    Raises:
        UserError: another process writes it, it is a link, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_symlink():  # in a folder that somebody else filled it may lead to any file of the user's
            raise UserError(f"{path} is a link, and nothing is added to what it leads to; choose another --output")
        self._lock: BaseFileLock | None = None
        self._is_closed = False
        try:
            self._lock = _acquire_lock(path)
            with path.open("ab"):
                pass
        except OSError as error:
            self.close()
            reason = error.strerror or error
            raise UserError(f"{path} cannot be written ({reason}); choose another --output") from error

    def add(self, *lines: Mapping[str, Any]) -> None:
        """Append lines; they are on the disk when this returns.

        Raises:
            UserError: they cannot be written; the file is then as before.
        """
        assert not self._is_closed, "the file is closed"
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        try:
            with self.path.open("ab+", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                if end:  # after an incomplete line this one would be lost as well
                    file.seek(end - 1)
                    content = content if file.read(1) == b"\n" else b"\n" + content
                try:
                    written = 0
                    while written < len(content):
                        written += file.write(content[written:]) or 0
                    os.fsync(file.fileno())
                except OSError:
                    with suppress(OSError):
                        file.truncate(end)
                    raise
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); make room and give the same command again, which "
                "resumes from here"
            ) from error

    def empty(self) -> None:
        """Delete all lines."""
        os.truncate(self.path, 0)

    def close(self) -> None:
        """Let other processes write the file; closing it again does nothing."""
        self._is_closed = True
        if self._lock is not None:
            # While it is still held: a waiting process finds its file gone and makes another. On Windows, where a file
            # in use cannot be removed, filelock removes it.
            with suppress(OSError):
                os.unlink(self._lock.lock_file)
            self._lock.release()
            self._lock = None

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def part_of(path: Path, rank: int) -> Path:
    """Return the file of one rank: ``manifest.jsonl`` -> ``manifest.part-0001.jsonl``."""
    return path.with_name(f"{path.stem}.part-{rank:04d}{path.suffix}")


def parts_of(path: Path) -> list[Path]:
    """Return the existing files of ranks, in the order of the ranks."""
    return sorted(path.parent.glob(f"{path.stem}.part-*{path.suffix}"))


def refuse_writers(path: Path, own: Path) -> None:
    """Check that no other process writes a part of a file; locks of killed processes are removed.

    Args:
        path: the file that the parts belong to.
        own: the file that the caller writes.

    Raises:
        UserError: another process writes a part.
    """
    locks = path.parent.glob(f".{path.stem}.part-*{path.suffix}.lock")
    locked = {lock.with_name(lock.name[1:].removesuffix(".lock")) for lock in locks}
    for part in sorted({*parts_of(path), *locked} - {own}):
        existed = part.exists()
        Writer(part).close()
        if not existed:
            part.unlink()


def _acquire_lock(path: Path) -> BaseFileLock | None:
    """Return the held lock of a file; None where the file system has no locks.

    Raises:
        UserError: another process holds it.
        OSError: there cannot be one.
    """
    from filelock import FileLock, Timeout  # its import takes as long as all others of `--help`

    # Without the fallback for file systems without locks: it stays locked when its holder is killed elsewhere.
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


def _format_torn_lines(path: Path, torn: list[int]) -> str:
    if len(torn) == 1:
        return f"{path}, line {torn[0]} is incomplete, as after a killed process; it is skipped"
    named = ", ".join(map(str, torn[:_MAX_NAMED_LINES]))
    more = f" and {len(torn) - _MAX_NAMED_LINES} more" if len(torn) > _MAX_NAMED_LINES else ""
    return f"{path}, lines {named}{more} are incomplete, as after killed processes; they are skipped"
