"""The file of a run's results, from which a stopped run resumes.

Imports no Paddle.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.files import prepare_folder, write_text
from ppdiffusers_tome.tools.measure.json_lines import append_line, lock_file, read_lines

Job = tuple[str, Sequence[Any], Callable[[Sequence[Any]], Iterator[tuple[Any, Any]]]]


class Ledger:
    """Results by their keys, on the disk and in memory.

    A key is any value that JSON can hold, such as ``["a cat", 0, "ratio 0.5"]``; so is a result. A ledger is used in a
    ``with`` statement; meanwhile no other run can write its file.

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
        self._lock = ExitStack()

    def __enter__(self) -> Ledger:
        """Lock and read the file.

        Raises:
            UserError: it has another identity or is no ledger, another run writes it, or it cannot be written.
        """
        with ExitStack() as lock:
            lock.enter_context(lock_file(self.path.with_name(f".{self.path.name}.lock"), self.path))
            self._read()
            self._lock = lock.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

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
        append_line(self.path, {"key": key, "result": result})
        self._results[_encode(key)] = json.loads(json.dumps(result))

    def _read(self) -> None:
        lines = [] if self._overwrite else read_lines(self.path)
        if self._overwrite or not self.path.exists():
            write_text(self.path, json.dumps({"identity": self._identity}) + "\n", overwrite=True)
        elif not lines or not isinstance(lines[0].get("identity"), dict):
            raise UserError(
                f"{self.path} is no file of results of this program, or of another version; give another --output, "
                "or --overwrite to start over"
            )
        for name, value in self._identity.items() if lines else ():
            old = lines[0]["identity"].get(name)
            if old != value:
                raise UserError(
                    f"{self.path} was measured with {name}={truncated_repr(old)} and this run has "
                    f"{truncated_repr(value)}; give the same arguments on the same machine to resume, another "
                    "--output, or --overwrite to start over"
                )
        for line in lines[1:]:
            if "key" in line and "result" in line:
                self._results[_encode(line["key"])] = line["result"]


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
