"""The file of a run's results, from which a stopped run resumes.

This module imports no Paddle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.measure.json_lines import Writer, part_of, parts_of, read_lines, refuse_writers

_START = b'{"identity": '  # of every ledger

L = TypeVar("L", bound="Ledger")


class Ledger:
    """Results by their keys, on the disk and in memory.

    A key is any value that JSON can hold, such as ``["a cat", 0, "ratio 0.5"]``; so is a result. A line that is
    incomplete, as after a killed process, counts as not written. A ledger is open in a ``with`` statement; meanwhile no
    other run can write its file.

    Args:
        path: the file; created if it does not exist.
        identity: what all results of the file have in common, such as the model; those of an existing file must match.
        overwrite: start over and forget the results of the file.
        rank: of several processes that write at once. Rank 0 writes the file itself, every other rank a part of its
            own beside it; all of them read all files. Rank 0 must have opened it before any other.

    Raises:
        UserError: the file has another identity or is no ledger, another run writes it, or it cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False, rank: int = 0) -> None:
        self.path = path
        self.machine: dict[str, Any] = {}
        self._results: dict[str, Any] = {}
        self._identity = json.loads(json.dumps(identity))
        self._writer = Writer(part_of(path, rank) if rank else path)
        try:
            if rank == 0:
                refuse_writers(path, path)
                for part in parts_of(path) if overwrite else ():
                    part.unlink()
            self._start_file(overwrite)
            self.reload()
        except BaseException:
            self.close()
            raise

    def __contains__(self, key: Any) -> bool:
        return _encode(key) in self._results

    def __getitem__(self, key: Any) -> Any:
        """Return the result of a key, the last if it has several."""
        return self._results[_encode(key)]

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the result of a key, or ``default``."""
        return self._results.get(_encode(key), default)

    def add(self, key: Any, result: Any) -> None:
        """Append a result; it is on the disk when this returns.

        Raises:
            UserError: it cannot be written.
        """
        self._writer.add({"key": key, "result": result})
        self._results[_encode(key)] = json.loads(json.dumps(result))

    def check_machine(self, machine: Mapping[str, Any]) -> None:
        """Note what the results are measured on.

        Raises:
            UserError: the file's results are from another machine.
        """
        if self.machine:
            self._check(self.path, self.machine, machine)
        else:
            self.machine = dict(machine)
            self._writer.add({"machine": self.machine})

    def reload(self) -> None:
        """Read all files again, with the results that other ranks have added since.

        Raises:
            UserError: a file has another identity.
        """
        for path in [self.path, *parts_of(self.path)]:
            for line in read_lines(path):
                if "identity" in line:
                    self._check(path, line["identity"], self._identity)
                elif "machine" in line:
                    self.machine = self.machine or line["machine"]
                elif "key" in line and "result" in line:
                    self._results[_encode(line["key"])] = line["result"]

    def close(self) -> None:
        """Let other runs write the file; closing it again does nothing."""
        self._writer.close()

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_file(self, overwrite: bool) -> None:
        """Write the identity into a file that is new or has only its beginning."""
        content = self._writer.path.read_bytes().strip(b"\0\r\n ")
        is_new = b"\n" not in content and _START.startswith(content[: len(_START)])
        if overwrite or is_new:
            self._writer.empty()
            self._writer.add({"identity": self._identity})
        elif _START not in content:
            raise UserError(
                f"{self._writer.path} is no file of results of this program, or of another version; give another "
                "--output, or --overwrite to start over"
            )

    def _check(self, path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for name, value in new.items():
            if old.get(name) != value:
                raise UserError(
                    f"{path} was measured with {name}={truncated_repr(old.get(name))} and this run has "
                    f"{truncated_repr(value)}; give the same arguments on the same machine to resume, another "
                    "--output, or --overwrite to start over"
                )


def _encode(key: Any) -> str:
    return json.dumps(key, sort_keys=True)
