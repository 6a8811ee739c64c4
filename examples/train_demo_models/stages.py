"""What a training's folder keeps beside the checkpoint: lock, finished stages, loss curve. Knows no PyTorch."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from ppdiffusers_tome.tools.files import write_atomically


@cache
def lock(output: Path) -> TextIO:
    """Keep a folder to this process for as long as it lives.

    Raises:
        SystemExit: another process trains there.
    """
    file = (output / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"another process trains in {output}; end it first, or choose another --output") from None
    return file


def finished_stages(output: Path) -> dict[str, Any]:
    """The stages that are done, each with its facts."""
    file = output / "stages.json"
    return json.loads(file.read_text()) if file.exists() else {}


def note_finished(output: Path, stage: str, facts: Mapping[str, Any]) -> None:
    """Note that a stage is done; killed meanwhile, the file says what it said."""
    _write(output / "stages.json", json.dumps(finished_stages(output) | {stage: dict(facts)}, indent=2) + "\n")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a loss curve, a line a row, whole or not at all."""
    _write(path, "".join(json.dumps(row) + "\n" for row in rows))


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()), overwrite=True)
