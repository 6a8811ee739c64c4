"""Lock, finished stages and loss curve of a training. This module imports no PyTorch."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from ppdiffusers_tome.tools.files import write_text


@cache
def lock_folder(output: Path) -> TextIO:
    """Reserve a folder for this process until it ends.

    Raises:
        SystemExit: another process trains in it.
    """
    file = (output / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"another process trains in {output}; end it first, or choose another --output") from None
    return file


def read_finished_stages(output: Path) -> dict[str, Any]:
    """Return the results of the finished stages, by name."""
    file = output / "stages.json"
    return json.loads(file.read_text()) if file.exists() else {}


def record_finished_stage(output: Path, stage: str, results: Mapping[str, Any]) -> None:
    """Add a finished stage to the folder's ``stages.json``."""
    stages = read_finished_stages(output) | {stage: dict(results)}
    write_text(output / "stages.json", json.dumps(stages, indent=2) + "\n")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a loss curve as a whole, one line per row."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
