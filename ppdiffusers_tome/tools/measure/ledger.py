"""The results of a run, which resumes from them. Imports no Paddle."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.files import prepare_folder
from ppdiffusers_tome.settings.text import shorten_repr


class Ledger:
    """Results by key, in memory and as lines of JSON.

    A key is any value that JSON can hold, such as ``["a cat", 0, "ratio 0.5"]``; so is a result.

    Args:
        path: the file; created if it does not exist.
        identity: what all results of the file have in common, such as the model and the machine; those of an existing
            file must match.
        overwrite: start over and forget the results of the file.

    Raises:
        UserError: the file has another identity or is no ledger, or it cannot be read or written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        self._results: dict[str, Any] = {}
        if overwrite or not path.exists():
            path.unlink(missing_ok=True)
            self._append({"identity": identity})
            return
        first, *lines = self._read() or [{}]
        if not isinstance(first.get("identity"), dict):
            raise UserError(
                f"{path} is no file of results of this program, or of another version; give another --output, or "
                "--overwrite to start over"
            )
        for name, value in json.loads(json.dumps(identity)).items():
            if (old := first["identity"].get(name)) != value:
                raise UserError(
                    f"{path} was measured with {name}={shorten_repr(old)} and this run has {shorten_repr(value)}; "
                    "give the same arguments on the same machine to resume, another --output, or --overwrite to start "
                    "over"
                )
        self._results = {_encode(line["key"]): line["result"] for line in lines if {"key", "result"} <= line.keys()}

    def __contains__(self, key: Any) -> bool:
        return _encode(key) in self._results

    def __getitem__(self, key: Any) -> Any:
        return self._results[_encode(key)]

    def get(self, key: Any, default: Any = None) -> Any:
        return self._results.get(_encode(key), default)

    def values(self) -> list[Any]:
        """Return all results, in their order."""
        return list(self._results.values())

    def add(self, key: Any, result: Any) -> None:
        """Append a result; it is on the disk when this returns."""
        self._append({"key": key, "result": result})
        self._results[_encode(key)] = json.loads(json.dumps(result))

    def _read(self) -> list[dict[str, Any]]:
        """Read all lines, of which a killed process left incomplete ones."""
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error.strerror}); choose another --output") from error
        lines: list[dict[str, Any]] = []
        for number, line in enumerate(content.split(b"\n"), start=1):
            value = None
            with suppress(ValueError, RecursionError):
                value = json.loads(line)
            if isinstance(value, dict):
                lines.append(value)
            elif line.strip():
                message = f"{self.path}, line {number} is incomplete, as after a killed process; it is skipped"
                warnings.warn(message, stacklevel=3)
        return lines

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            with self.path.open("ab+") as file:
                if file.tell():  # an incomplete line would take the next one with it
                    file.seek(-1, os.SEEK_END)
                    file.write(b"" if file.read() == b"\n" else b"\n")
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); make room and give the same command again, which "
                "resumes from here"
            ) from error


def prepare_results(args: argparse.Namespace, name: str, *files: str) -> list[Path]:
    """Prepare ``--output`` for files, ``name.md`` and ``name.json``; see ``prepare_folder``.

    They are made from the ledger ``name.jsonl``, so they may be replaced where it exists.
    """
    overwrite = args.overwrite or (args.output / f"{name}.jsonl").is_file()
    return prepare_folder(args.output, [*files, f"{name}.md", f"{name}.json"], overwrite=overwrite)


def _encode(key: Any) -> str:
    return json.dumps(key, sort_keys=True)
