"""Ledgers and the runner: results survive a stop at any moment, and nothing is computed twice or mixed up."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.runner import Job, run_jobs

IDENTITY = {"model": "bundled", "sizes": (64, 64)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def fill(path: Path, *numbers: int) -> None:
    with Ledger(path, IDENTITY) as ledger:
        for number in numbers:
            ledger.add(["n", number], number)


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


@pytest.mark.parametrize("torn", [b'{"key": ["n", 3], "res', b"\0" * 40, b'{"iden'])
def test_an_interrupted_line_is_lost_alone(path: Path, torn: bytes) -> None:
    fill(path, 1)
    with path.open("ab") as file:
        file.write(torn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fill(path, 2)
        with Ledger(path, IDENTITY) as ledger:
            assert [ledger.get(["n", number]) for number in (1, 2, 3)] == [1, 2, None]


@pytest.mark.parametrize("content", [b"", b'{"ident', b'{"identity": {"mod', b"\0\0\0"])
def test_a_first_line_that_was_interrupted_is_written_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    fill(path, 1)
    with Ledger(path, IDENTITY) as ledger:
        assert ["n", 1] in ledger


@pytest.mark.parametrize("content", [b"my notes\n", b'{"n": 1}\n{"n": 2}\n', b"\xff\xfe"])
def test_a_file_of_the_users_is_not_touched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match="is no file of results of this program"):
        Ledger(path, IDENTITY)
    assert path.read_bytes() == content


def test_other_settings_and_machines_are_refused(path: Path) -> None:
    with Ledger(path, IDENTITY) as ledger:
        ledger.check_machine({"processor": "a"})
        with pytest.raises(UserError, match="processor='a' and this run has 'b'"):
            ledger.check_machine({"processor": "b"})
    with pytest.raises(UserError, match="model='bundled' and this run has 'other'"):
        Ledger(path, {**IDENTITY, "model": "other"})
    with Ledger(path, {"model": "other"}, overwrite=True) as ledger:
        assert ledger.machine == {}


def test_one_run_at_a_time_writes(path: Path) -> None:
    with Ledger(path, IDENTITY), pytest.raises(UserError, match="another run writes"):
        Ledger(path, IDENTITY, overwrite=True)
    fill(path, 1)


def test_ranks_write_parts_and_read_all(path: Path) -> None:
    with Ledger(path, IDENTITY) as first, Ledger(path, IDENTITY, rank=1) as second:
        first.add(["n", 0], 0)
        second.add(["n", 1], 1)
        first.reload()
        assert first[["n", 1]] == 1
        first.close()
        with pytest.raises(UserError, match=r"another run writes to .*part-0001"):
            Ledger(path, IDENTITY)
    with Ledger(path, IDENTITY) as ledger:
        assert (ledger[["n", 0]], ledger[["n", 1]]) == (0, 1)
    with Ledger(path, IDENTITY, overwrite=True) as ledger:
        assert ["n", 1] not in ledger
    assert [each.name for each in path.parent.iterdir()] == [path.name]


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
