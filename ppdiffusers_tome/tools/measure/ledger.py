"""The file of a run's results, from which a stopped run resumes. Imports no Paddle."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.measure.json_lines import read_lines

Job = tuple[str, Sequence[Any], Callable[[Sequence[Any]], Iterator[tuple[Any, Any]]]]


class Ledger:
    """Results by their keys, on the disk and in memory, used in a ``with`` statement.

    A key is any value that JSON can hold, such as ``["a cat", 0, "ratio 0.5"]``; so is a result.

    Args:
        path: the file; created if it does not exist.
        identity: what all results of the file have in common, such as the model and the machine; those of an existing
            file must match.
        overwrite: start over and forget the results of the file.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        self._results: dict[str, Any] = {}
        self._identity = json.loads(json.dumps(identity))
        self._overwrite = overwrite

    def __enter__(self) -> Ledger:
        """Read the file.

        Raises:
            UserError: it has another identity or is no ledger, or it cannot be written.
        """
        lines = [] if self._overwrite else read_lines(self.path)
        if self._overwrite or not self.path.exists():
            self._write("wb", {"identity": self._identity})
        elif not lines or not isinstance(lines[0].get("identity"), dict):
            raise UserError(
                f"{self.path} is no file of results of this program, or of another version; give another --output, "
                "or --overwrite to start over"
            )
        for name, value in self._identity.items() if lines else ():
            if (old := lines[0]["identity"].get(name)) != value:
                raise UserError(
                    f"{self.path} was measured with {name}={truncated_repr(old)} and this run has "
                    f"{truncated_repr(value)}; give the same arguments on the same machine to resume, another "
                    "--output, or --overwrite to start over"
                )
        found = [line for line in lines[1:] if {"key", "result"} <= line.keys()]
        self._results = {_encode(line["key"]): line["result"] for line in found}
        return self

    def __exit__(self, *_: object) -> None:
        """Every result is on the disk."""

    def __contains__(self, key: Any) -> bool:
        return _encode(key) in self._results

    def __getitem__(self, key: Any) -> Any:
        return self._results[_encode(key)]

    def get(self, key: Any, default: Any = None) -> Any:
        return self._results.get(_encode(key), default)

    def add(self, key: Any, result: Any) -> None:
        """Append a result; it is on the disk when this returns.

        Raises:
            UserError: it cannot be written.
        """
        self._write("ab+", {"key": key, "result": result})
        self._results[_encode(key)] = json.loads(json.dumps(result))

    def _write(self, mode: str, line: Mapping[str, Any]) -> None:
        try:
            with self.path.open(mode) as file:
                _append(file, json.dumps(line).encode())
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); make room and give the same command again, which "
                "resumes from here"
            ) from error


def _append(file: IO[Any], line: bytes) -> None:
    """Append a line to the disk, on a new one after an incomplete line, with which it would be lost."""
    if file.tell():
        file.seek(-1, os.SEEK_END)
        line = line if file.read() == b"\n" else b"\n" + line
    file.write(line + b"\n")
    file.flush()
    os.fsync(file.fileno())


def prepare_results(args: argparse.Namespace, name: str, *files: str) -> list[Path]:
    """Prepare ``--output`` for files, ``name.md`` and ``name.json``; see ``prepare_folder``.

    They are made from the ledger ``name.jsonl``, so they may be replaced where it exists.
    """
    overwrite = args.overwrite or (args.output / f"{name}.jsonl").is_file()
    return prepare_folder(args.output, [*files, f"{name}.md", f"{name}.json"], overwrite=overwrite)


def run_jobs(jobs: Sequence[Job], ledger: Ledger, *, description: str) -> None:
    """Run jobs in their order, and add each result to the ledger at once.

    Args:
        jobs: each a name for the progress bar, the keys that lack a result, and a function that computes them: it
            yields each key with its result at once, and may omit keys, which the next run tries again.
        ledger: receives the results.
        description: of the results, in the plural, for the progress bar.
    """
    from tqdm import tqdm

    with tqdm(total=sum(len(keys) for _, keys, _ in jobs), desc=description, position=0, disable=None) as bar:
        for name, keys, compute in jobs:
            if keys:
                bar.set_postfix_str(name)
                for key, result in compute(keys):
                    ledger.add(key, result)
                    bar.update()


def _encode(key: Any) -> str:
    return json.dumps(key, sort_keys=True)
