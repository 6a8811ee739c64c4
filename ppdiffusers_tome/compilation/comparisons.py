"""Programs whose result was compared with Paddle's, noted in the user's cache folder.

A program is made anew in every process, in seconds. The comparison takes a call of Paddle's, so it is made once: the
note is an empty file, named by a hash of the program, some numbers of its weights, and what computes it.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from ppdiffusers_tome.cpu.process import find_processor_name
from ppdiffusers_tome.messages import warn_user


def find_folder() -> Path:
    """Return the folder of the notes: ``~/.cache/ppdiffusers_tome``, or in ``XDG_CACHE_HOME``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "ppdiffusers_tome"


def hash_comparison(*parts: str | bytes) -> str:
    """Hash parts, OpenVINO's version and the processor into a note's name."""
    import openvino

    digest = hashlib.sha256()
    for part in (*parts, openvino.__version__, find_processor_name() or platform.machine()):
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def has_compared(name: str) -> bool:
    """Return whether a comparison is noted."""
    return os.path.isfile(find_folder() / name)  # False too where Path raises, as in a folder without permission


def note_compared(name: str) -> None:
    """Note a comparison, or warn that the next process will compare again."""
    try:
        find_folder().mkdir(parents=True, exist_ok=True)
        (find_folder() / name).touch()
    except OSError as error:
        warn_user(
            f"{find_folder()} cannot be written ({error.strerror}), so the next process compares compiled programs "
            "with Paddle again; set XDG_CACHE_HOME to a folder that can"
        )
