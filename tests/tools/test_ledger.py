"""Ledgers: results survive a stop at any moment, and nothing is computed twice or mixed up."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.ledger import Ledger

IDENTITY = {"model": "bundled", "sizes": (64, 64)}
TORN = {"cut off": b'{"key": ["n", 3], "res', "power failed": b"\0" * 40, "no UTF-8": b'{"a": "\xff"}'}
# Adds results until it is killed.
ADD = """
import itertools, sys
from pathlib import Path
from ppdiffusers_tome.tools.measure.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), {"model": "bundled", "sizes": (64, 64)})
for number in itertools.count():
    ledger.add(["n", number], "x" * 10**6)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.jsonl"


def fill(path: Path, *numbers: int) -> None:
    ledger = Ledger(path, IDENTITY)
    for number in numbers:
        ledger.add(["n", number], number)


def test_results_are_there_in_the_next_run(path):
    ledger = Ledger(path, IDENTITY)
    ledger.add({"prompt": "a cat", "seed": 0}, {"seconds": 1.5})
    ledger.add(["n", 1], 1)
    ledger.add(["n", 1], 2)
    ledger = Ledger(path, IDENTITY)
    assert ledger[{"seed": 0, "prompt": "a cat"}] == {"seconds": 1.5}
    assert ledger[["n", 1]] == 2
    assert ["n", 2] not in ledger
    assert ledger.get(["n", 2]) is None


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_a_torn_line_is_skipped_with_a_warning_and_costs_no_other(path, torn):
    fill(path, 1)
    with path.open("ab") as file:
        file.write(torn)
    with pytest.warns(UserWarning, match="line 3 is incomplete"):
        fill(path, 2)
    with pytest.warns(UserWarning, match="is incomplete"):
        ledger = Ledger(path, IDENTITY)
    assert [ledger.get(["n", number]) for number in (1, 2, 3)] == [1, 2, None]


@pytest.mark.parametrize("content", [b"", b'{"n": 1}\n{"n": 2}\n', b'{"identity": 1}\n'])
def test_a_file_of_the_users_is_not_touched(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError, match="is no file of results of this program"):
        fill(path)
    assert path.read_bytes() == content


def test_other_settings_are_refused(path):
    fill(path, 1)
    with pytest.raises(UserError, match="model='bundled' and this run has 'other'"):
        Ledger(path, {"model": "other"})
    assert ["n", 1] not in Ledger(path, {"model": "other"}, overwrite=True)


def test_a_killed_run_loses_one_line(path, tmp_path):
    program = subprocess.Popen([sys.executable, "-c", ADD, str(path)])
    while not path.exists() or path.stat().st_size < 3 * 10**6:
        time.sleep(0.001)
    program.kill()
    program.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fill(path, -1)
        ledger = Ledger(path, IDENTITY)
    assert all(["n", number] in ledger for number in (-1, 0, 1))
    assert list(tmp_path.iterdir()) == [path]
