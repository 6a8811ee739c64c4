"""Ledgers and the runner: results survive a stop at any moment, and nothing is computed twice or mixed up."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.json_lines import append_line, read_lines
from ppdiffusers_tome.tools.measure.ledger import Job, Ledger, run_jobs

IDENTITY = {"model": "bundled", "sizes": (64, 64)}
TORN = {
    "cut off": b'{"key": ["n", 3], "res',
    "power failed": b"\0" * 40,
    "no UTF-8": b'{"a": "\xff"}',
    "no object": b"[1]",
}
# Adds results until it is killed.
ADD = """
import itertools, sys
from pathlib import Path
from ppdiffusers_tome.tools.measure.ledger import Ledger
with Ledger(Path(sys.argv[1]), {"model": "bundled", "sizes": (64, 64)}) as ledger:
    for number in itertools.count():
        ledger.add(["n", number], "x" * 10**6)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def fill(path: Path, *numbers: int) -> None:
    with Ledger(path, IDENTITY) as ledger:
        for number in numbers:
            ledger.add(["n", number], number)


def open_ledger(path: Path, **arguments: Any) -> None:
    with Ledger(path, IDENTITY, **arguments):
        pass


def test_results_are_there_in_the_next_run(path: Path) -> None:
    with Ledger(path, IDENTITY) as ledger:
        ledger.check_machine({"processor": "a"})
        ledger.add({"prompt": "a cat", "seed": 0}, {"seconds": 1.5})
        ledger.add(["n", 1], 1)
        ledger.add(["n", 1], 2)
    with Ledger(path, IDENTITY) as ledger:
        assert ledger[{"seed": 0, "prompt": "a cat"}] == {"seconds": 1.5}
        assert ledger[["n", 1]] == 2
        assert ["n", 2] not in ledger
        assert ledger.get(["n", 2]) is None
        assert ledger.machine == {"processor": "a"}


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_a_torn_line_is_skipped_with_a_warning_and_costs_no_other(path: Path, torn: bytes) -> None:
    fill(path, 1)
    with path.open("ab") as file:
        file.write(torn)
    with pytest.warns(UserWarning, match="line 3 is incomplete"):
        fill(path, 2)
    with pytest.warns(UserWarning, match="is incomplete"), Ledger(path, IDENTITY) as ledger:
        assert [ledger.get(["n", number]) for number in (1, 2, 3)] == [1, 2, None]


@pytest.mark.parametrize("content", [b'{"identity": {"mod', b"\0\0\0"])
def test_a_first_line_that_was_interrupted_is_written_again(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    fill(path, 1)
    with Ledger(path, IDENTITY) as ledger:
        assert ["n", 1] in ledger


def test_files_edited_by_hand_are_read_and_continued(path: Path) -> None:
    assert read_lines(path) == []
    path.write_bytes(b'{"n": 1}\r\n\n{"n": 2}')
    append_line(path, {"n": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_lines(path) == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("content", [b"my notes\n", b'{"n": 1}\n{"n": 2}\n'])
def test_a_file_of_the_users_is_not_touched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match="is no file of results of this program"):
        open_ledger(path)
    assert path.read_bytes() == content


def test_other_settings_and_machines_are_refused(path: Path) -> None:
    with Ledger(path, IDENTITY) as ledger:
        ledger.check_machine({"processor": "a"})
        with pytest.raises(UserError, match="processor='a' and this run has 'b'"):
            ledger.check_machine({"processor": "b"})
    with pytest.raises(UserError, match="model='bundled' and this run has 'other'"), Ledger(path, {"model": "other"}):
        pass
    with Ledger(path, {"model": "other"}, overwrite=True) as ledger:
        assert ledger.machine == {}


def test_one_run_at_a_time_writes(path: Path, tmp_path: Path) -> None:
    with Ledger(path, IDENTITY), pytest.raises(UserError, match="another run writes"):
        open_ledger(path, overwrite=True)
    fill(path, 1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_run_locks_nothing_and_loses_one_line(path: Path, tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", ADD, str(path)])
    while not path.exists() or path.stat().st_size < 3 * 10**6:
        time.sleep(0.001)
    with pytest.raises(UserError, match="another run writes"):
        open_ledger(path)
    program.kill()
    program.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fill(path, -1)
        with Ledger(path, IDENTITY) as ledger:
            assert all(["n", number] in ledger for number in (-1, 0, 1))
        results = [line for line in read_lines(path) if "key" in line]
    assert [line["key"][1] for line in results] == [*range(len(results) - 1), -1]
    assert list(tmp_path.iterdir()) == [path]


def test_file_systems_without_locks_are_written_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    fill(path, 1)
    with Ledger(path, IDENTITY) as ledger:
        assert ["n", 1] in ledger


def test_a_stopped_runner_resumes(path: Path) -> None:
    computed = []

    def run(keys: list[Any]) -> Iterator[tuple[Any, Any]]:
        for key in keys:
            if len(computed) == 3:
                raise KeyboardInterrupt
            computed.append(key)
            yield key, key

    jobs = [Job("first", [0, 1], run), Job("second", [2, 3, 4], run)]
    with pytest.raises(KeyboardInterrupt), Ledger(path, IDENTITY) as ledger:
        run_jobs(jobs, ledger, description="numbers")
    assert computed == [0, 1, 2]
    computed.clear()
    with Ledger(path, IDENTITY) as ledger:
        run_jobs(jobs, ledger, description="numbers")
        assert [ledger[key] for key in range(5)] == [0, 1, 2, 3, 4]
    assert computed == [3, 4]
