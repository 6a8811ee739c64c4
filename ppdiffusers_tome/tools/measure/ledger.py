"""The file of a run's results, from which a stopped run resumes.

Imports no Paddle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.measure.json_lines import append_line, lock_file, read_lines

_START = b'{"identity": '  # of every ledger


class Ledger:
    """Results by their keys, on the disk and in memory.

    A key is any value that JSON can hold, such as ``["a cat", 0, "ratio 0.5"]``; so is a result. A ledger is used in a
    ``with`` statement; meanwhile no other run can write its file.

    Args:
        path: the file; created if it does not exist.
        identity: what all results of the file have in common, such as the model; those of an existing file must match.
        overwrite: start over and forget the results of the file.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        self.machine: dict[str, Any] = {}
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
            self._start_file()
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

    def check_machine(self, machine: Mapping[str, Any]) -> None:
        """Note what the results are measured on.

        Raises:
            UserError: the file's results are from another machine.
        """
        if self.machine:
            self._check(self.machine, machine)
        else:
            self.machine = dict(machine)
            append_line(self.path, {"machine": self.machine})

    def _read(self) -> None:
        for line in read_lines(self.path):
            if "identity" in line:
                self._check(line["identity"], self._identity)
            elif "machine" in line:
                self.machine = self.machine or line["machine"]
            elif "key" in line and "result" in line:
                self._results[_encode(line["key"])] = line["result"]

    def _start_file(self) -> None:
        """Write the identity into a file that is new or has only its beginning."""
        try:
            self.path.touch()
            content = self.path.read_bytes().strip(b"\0\r\n ")
        except OSError as error:
            raise UserError(f"{self.path} cannot be written ({error.strerror}); choose another --output") from error
        is_new = b"\n" not in content and _START.startswith(content[: len(_START)])
        if self._overwrite or is_new:
            self.path.write_bytes(b"")
            append_line(self.path, {"identity": self._identity})
        elif _START not in content:
            raise UserError(
                f"{self.path} is no file of results of this program, or of another version; give another --output, "
                "or --overwrite to start over"
            )

    def _check(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        for name, value in new.items():
            if old.get(name) != value:
                raise UserError(
                    f"{self.path} was measured with {name}={truncated_repr(old.get(name))} and this run has "
                    f"{truncated_repr(value)}; give the same arguments on the same machine to resume, another "
                    "--output, or --overwrite to start over"
                )


@dataclass(frozen=True)
class Job:
    """Results that share a loaded model or a reference image.

    Attributes:
        name: for the progress bar.
        keys: of the results.
        run: computes the results of the keys that it is given, a part of ``keys`` in their order, and yields each key
            with its result at once. It may omit keys; the next run tries these again.
    """

    name: str
    keys: Sequence[Any]
    run: Callable[[list[Any]], Iterator[tuple[Any, Any]]]


def run_jobs(
    jobs: Iterable[Job], ledger: Ledger, *, description: str, is_done: Callable[[Any], bool] | None = None
) -> None:
    """Run jobs and add each result to the ledger at once.

    Args:
        jobs: in their order; a job whose keys are all done does not run.
        ledger: receives the results.
        description: of the results, in the plural, for the progress bar.
        is_done: tells whether a key needs no result any more; by default it is in the ledger.
    """
    from tqdm import tqdm

    is_done = is_done or ledger.__contains__
    missing = [(job, [key for key in job.keys if not is_done(key)]) for job in jobs]
    with tqdm(total=sum(len(keys) for _, keys in missing), desc=description, position=0, disable=None) as bar:
        for job, keys in missing:
            if keys:
                bar.set_postfix_str(job.name)
                for key, result in job.run(keys):
                    ledger.add(key, result)
                    bar.update()


def _encode(key: Any) -> str:
    return json.dumps(key, sort_keys=True)
