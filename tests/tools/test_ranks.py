"""Processes of Paddle's launcher: how they share the work and exchange values."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from launching import on_ranks, python_path
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.ranks import Ranks

STAGGERED = """
import atexit, sys, time
from ppdiffusers_tome.tools.ranks import Ranks, exit_process

ranks = Ranks.from_environment()
atexit.register(print, "torn down", flush=True)
assert ranks.exchange({"rank": ranks.rank}, "begin") == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
time.sleep((0.0, 1.2, 0.6)[ranks.rank])
arrived = time.time()
values = ranks.exchange("é" * 100_000 * ranks.rank, "end")
assert [len(value) for value in values] == [0, 100_000, 200_000]
ranks.check_first_is_alive()
ranks.leave()
sys.stdout.write(f"arrived {arrived} left {time.time()}")
exit_process(0)
"""


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_item_falls_to_one_rank(size: int) -> None:
    shards = [Ranks(rank, size).shard(list(range(10))) for rank in range(size)]
    assert sorted(number for shard in shards for number in shard) == list(range(10))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_the_launcher_names_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ranks.from_environment() == Ranks(0, 1)
    assert Ranks(0, 1).exchange([2, 5], "end") == [[2, 5]]  # one process waits for nobody
    Ranks(0, 1).leave()
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    with pytest.raises(UserError, match="name no rank"):
        Ranks.from_environment()
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    assert Ranks.from_environment() == Ranks(1, 2)


@pytest.mark.sweep
def test_all_ranks_have_all_values_and_rank_0_ends_last(tmp_path: Path) -> None:
    script = tmp_path / "staggered.py"
    script.write_text(STAGGERED)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(Path(__file__).parents[2])}
    run = subprocess.run(on_ranks(3, tmp_path, str(script)), env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    logs = [(tmp_path / "log" / f"workerlog.{rank}").read_text() for rank in range(3)]
    assert all("torn down" not in log for log in logs)
    times = [log.rpartition("arrived ")[2].split(" left ") for log in logs]
    arrived, left = ([float(pair[index]) for pair in times] for index in (0, 1))
    assert max(arrived) <= min(left)
    assert left[0] == max(left)
