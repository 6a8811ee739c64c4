"""The file of what was measured so far, one line of JSON a result, so that a stopped run resumes from there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.json_lines import Writer, parts_of, read_lines, refuse_writers

_BEGINNING = b'{"plan": '  # of every ledger

L = TypeVar("L", bound="Ledger")


class Ledger:
    """Results on disk and in memory. A line that is not whole is as if it had never been written, but for a warning.

    While it is open no other run may write the same file: use it in a ``with`` statement.

    Args:
        path: the file; made where it does not exist.
        identity: how everything in the file is measured, as plain values; what an existing file holds must have been
            measured alike.
        overwrite: start over, whatever is there.
        part: what to write instead of the file itself, as one of several ranks; rank 0 has begun the file, and takes
            the parts into it with ``gather``.

    Attributes:
        lines: all that the file holds, and what was added.

    Raises:
        UserError: the file holds something else, or another run writes it.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False, part: Path | None = None
    ) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self._writer = Writer(part or path)
        try:
            if part is None:
                refuse_writers(path, path)
                self._begin(identity, overwrite=overwrite)
            else:
                self.lines = read_lines(path)
                _refuse_other(self.path, self._first("plan"), identity)
                self._writer.add({"plan": identity})  # by which gather knows what it belongs to
        except BaseException:
            self.close()
            raise

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
            _refuse_other(self.path, self.on, on)
        else:
            self.add({"on": dict(on)})

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a finding; it is on the disk when this returns.

        Raises:
            UserError: it cannot be written.
        """
        self._writer.add(line)
        self.lines.append(dict(line))

    def gather(self) -> None:
        """Take what other ranks have found into the file, and their parts away. Nobody may write to a part any more.

        Raises:
            UserError: a part was measured otherwise, or the file cannot be written.
        """
        known = set(map(_plain, self.lines))
        for part in parts_of(self.path):
            found = read_lines(part)
            if found:
                _refuse_other(part, _first(found, "plan"), self._first("plan"))
            # Of a run that was killed just here the file may have them already.
            new = [line for line in found if _plain(line) not in known]
            self._writer.add(*new)
            self.lines += new
            part.unlink()

    def close(self) -> None:
        """Let other runs have the file; closing it again does nothing."""
        self._writer.close()

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, identity: Mapping[str, Any], *, overwrite: bool) -> None:
        """Go on with what is there, or begin the file."""
        if overwrite:
            for part in parts_of(self.path):
                part.unlink()
            self._writer.empty()
        content = self.path.read_bytes().strip(b"\0\r\n ")
        if _BEGINNING in content:
            self.lines = read_lines(self.path)
        # Nothing, or as much as was written before the first run was killed.
        if not self.lines and b"\n" not in content and _BEGINNING.startswith(content[: len(_BEGINNING)]):
            self.add({"plan": identity})
        if not self._first("plan"):
            raise UserError(
                f"{self.path} cannot be read as findings of this program, as no line says how they were made; give "
                "another --output, or --overwrite to start over"
            )
        _refuse_other(self.path, self._first("plan"), identity)
        self.gather()

    def _first(self, key: str) -> dict[str, Any]:
        return _first(self.lines, key)


def _first(lines: Iterable[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """What the first line that has such a key says; empty where none does."""
    return next((line[key] for line in lines if isinstance(line.get(key), dict)), {})


def _refuse_other(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """What a file holds was measured as this run measures."""
    for name in now:
        if then.get(name) != now[name]:
            raise UserError(
                f"{path} was measured with {name}={_shown(then.get(name))} and this run has {_shown(now[name])}; give "
                "the same arguments on the same machine to resume, another --output, or --overwrite to start over"
            )


def _shown(value: Any) -> str:
    """A value as an error shows it: a prompt may be as long as it likes."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _plain(line: Mapping[str, Any]) -> str:
    """A line in the one way that JSON can say it."""
    return json.dumps(line, sort_keys=True)
