"""The environment of programs that tests start."""

from __future__ import annotations

import os
from pathlib import Path


def python_path(*folders: Path) -> str:
    """Return a program's ``PYTHONPATH``: that of the tests, and then these folders."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *map(str, folders)])
