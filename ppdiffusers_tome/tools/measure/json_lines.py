"""Files with a JSON object per line, written by processes that may be killed.

Imports no Paddle.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError

# Errors of file systems without locks, where a second writer is not noticed.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file, which need not exist.

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
    for number, line in enumerate(content.split(b"\n"), start=1):
        value = None
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
        if isinstance(value, dict):
            lines.append(value)
        elif line.strip():
            message = f"{path}, line {number} is incomplete, as after a killed process; it is skipped"
            warnings.warn(message, stacklevel=2)
    return lines


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append an object to a file and flush it to the disk.

    Raises:
        UserError: it cannot be written.
    """
    content = json.dumps(line).encode() + b"\n"
    try:
        with path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # after an incomplete line this one would be lost as well
                    content = b"\n" + content
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); make room and give the same command again, which resumes "
            "from here"
        ) from error


@contextmanager
def lock_file(path: Path, target: Path) -> Iterator[None]:
    """Keep other processes, on all machines that see a lock file, from locking it.

    The lock file of a killed process locks nothing. ``target`` is what the process writes, for errors.

    Raises:
        UserError: another process holds the lock, or it cannot be written.
    """
    from filelock import FileLock, Timeout  # its import takes as long as all others of `--help`

    # Without the fallback for file systems without locks: it stays locked when its holder is killed elsewhere.
    lock = FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"another run writes to {target}; wait until it has ended, or choose another --output"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise UserError(f"{path} cannot be written ({error.strerror}); choose another --output") from error
    try:
        yield
    finally:
        # While it is still held. On Windows, where a file in use cannot be removed, filelock removes it.
        with suppress(OSError):
            os.unlink(lock.lock_file)
        lock.release()
