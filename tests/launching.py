"""Programs that tests start, and such on many ranks of Paddle's own launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_path(*folders: Path) -> str:
    """Return a program's ``PYTHONPATH``: that of the tests, and then these folders."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *map(str, folders)])


def on_ranks(number: int, folder: Path, *program: str) -> list[str]:
    """Return the command that runs a Python program on several ranks.

    What the ranks say goes to ``folder/log/workerlog.RANK``, and what rank 0 says to standard output too.
    """
    return [
        sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(number),
        "--log_dir", str(folder / "log"), sys.executable, *program,
    ]  # fmt: skip
