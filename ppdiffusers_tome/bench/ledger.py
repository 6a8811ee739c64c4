"""The file of what was measured so far, one line of JSON a finding, so that a stopped benchmark goes on from there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ppdiffusers_tome.bench.plan import Entry, Plan, Setting
from ppdiffusers_tome.errors import UserError

TIME, MEMORY = "time", "memory"


class Findings:
    """Findings on disk and in memory. A line that was cut off in the middle is as if it had never been written.

    Args:
        path: the file; made by the first finding.
        identity: how everything in the file is measured, as plain values; what an existing file holds must have been
            measured alike.
        overwrite: begin anew whatever is there.

    Attributes:
        lines: all that the file holds.

    Raises:
        UserError: the file holds something else.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        if overwrite:
            path.unlink(missing_ok=True)
        if not path.exists():
            self.add({"plan": identity})
            return
        self.lines = _read(path)
        if not self.lines:
            self.add({"plan": identity})
        self._refuse_other("plan", identity)

    @property
    def on(self) -> dict[str, Any]:
        """What it was measured on; empty before anything was."""
        return self._first("on")

    def note_machine(self, on: Mapping[str, Any]) -> None:
        """Write down what is measured on.

        Raises:
            UserError: the file's findings come from elsewhere.
        """
        if self.on:
            self._refuse_other("on", on)
        else:
            self.add({"on": dict(on)})

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a finding; it is on the disk when this returns."""
        self.lines.append(dict(line))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _first(self, key: str) -> dict[str, Any]:
        return next((line[key] for line in self.lines if key in line), {})

    def _refuse_other(self, key: str, now: Mapping[str, Any]) -> None:
        then = self._first(key)
        for name in now:
            if then.get(name) != now[name]:
                raise UserError(
                    f"{self.path} was measured with {name}={then.get(name)!r} and this run has {now[name]!r}; give "
                    "the same arguments on the same machine to go on, another --output, or --overwrite to begin anew"
                )


class Ledger(Findings):
    """Findings of a benchmark.

    Args:
        path, overwrite: as in ``Findings``.
        plan: what is to be measured.

    Raises:
        UserError: the file holds something else.
    """

    def __init__(self, path: Path, plan: Plan, *, overwrite: bool = False) -> None:
        super().__init__(path, plan.identity, overwrite=overwrite)

    def add_round(self, setting: Setting, number: int, seconds: Mapping[str, float]) -> None:
        """Seconds by entry of one round."""
        self.add({"setting": asdict(setting), "round": number, "seconds": dict(seconds)})

    def add_peak(self, setting: Setting, entry: Entry, peaks: Mapping[str, int | None]) -> None:
        """``peak_bytes`` and ``resident_peak_bytes`` of one entry."""
        self.add({"setting": asdict(setting), "entry": entry.name, **peaks})

    def add_out_of_memory(self, setting: Setting, entry: Entry, during: str) -> None:
        """An entry did not fit, when its ``time`` or its ``memory`` was measured."""
        self.add({"setting": asdict(setting), "entry": entry.name, "out_of_memory": during})

    def rounds(self, setting: Setting) -> dict[int, dict[str, float]]:
        """Seconds by entry, by the number of the round."""
        return {line["round"]: line["seconds"] for line in self._about(setting) if "round" in line}

    def out_of_memory(self, setting: Setting, entry: Entry, during: str) -> bool:
        return any(line.get("out_of_memory") == during for line in self._about(setting, entry))

    def peaks(self, setting: Setting, entry: Entry) -> dict[str, int | None] | None:
        """``peak_bytes`` and ``resident_peak_bytes``; None before they are measured."""
        found = [line for line in self._about(setting, entry) if "peak_bytes" in line]
        return {name: found[-1][name] for name in ("peak_bytes", "resident_peak_bytes")} if found else None

    def _about(self, setting: Setting, entry: Entry | None = None) -> list[dict[str, Any]]:
        lines = [line for line in self.lines if line.get("setting") == asdict(setting)]
        return lines if entry is None else [line for line in lines if line.get("entry") == entry.name]


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; the last one is cut off the file when it is not whole."""
    lines, whole = [], 0
    try:
        content = path.read_bytes()
        for raw in content.splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                os.truncate(path, whole)
                break
            lines.append(json.loads(raw))
            whole += len(raw)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); give another --output, or --overwrite") from error
    return lines
