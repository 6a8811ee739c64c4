"""Processes that work together: how they divide the work, and that none ends under another's feet."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from launching import on_ranks, python_path
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.ranks import Ranks

# Whoever comes late comes to the last moment late; nothing that was said may be lost, nothing run that is not safe.
STAGGERED = """
import atexit, sys, time
from ppdiffusers_tome.tools.batch.ranks import Ranks, end

ranks = Ranks.from_environment()
atexit.register(print, "torn down", flush=True)
ranks.join()
sums = ranks.total([1, ranks.rank], "drawn")
time.sleep((0.0, 1.2, 0.6)[ranks.rank])
came = time.time()
ranks.leave()
sys.stdout.write(f"sums {sums} came {came} left {time.time()}")
end(0 if sums == [3, 3] else 1)
"""


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_everything_falls_to_one_rank(size: int) -> None:
    shards = [Ranks(rank, size).shard(list(range(10))) for rank in range(size)]
    assert sorted(number for shard in shards for number in shard) == list(range(10))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_what_is_over_falls_to_other_ranks_every_time() -> None:
    shares = [sum(len(Ranks(rank, 3).shard(["a", "b"], turn)) for turn in range(30)) for rank in range(3)]
    assert shares == [20, 20, 20]


def test_a_rank_is_what_the_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ranks.from_environment() == Ranks(0, 1)
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    with pytest.raises(UserError, match="name no rank"):
        Ranks.from_environment()
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    assert Ranks.from_environment() == Ranks(1, 2)


def test_one_process_waits_for_nobody() -> None:
    alone = Ranks(0, 1)
    alone.join()
    assert alone.total([2, 5], "drawn") == [2, 5]
    alone.leave()


@pytest.mark.sweep  # three processes; generate's ranks run in every commit
def test_all_have_the_sum_before_any_ends_and_rank_0_is_the_last(tmp_path: Path) -> None:
    script = tmp_path / "staggered.py"
    script.write_text(STAGGERED)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(Path(__file__).parents[2])}
    run = subprocess.run(on_ranks(3, tmp_path, str(script)), env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    said = [(tmp_path / "log" / f"workerlog.{rank}").read_text() for rank in range(3)]
    assert all("torn down" not in text for text in said)
    assert all("sums [3, 3] came " in text for text in said)
    times = [text.rpartition("came ")[2].split(" left ") for text in said]
    came, left = ([float(pair[index]) for pair in times] for index in (0, 1))
    assert max(came) <= min(left)
    assert left[0] == max(left)
