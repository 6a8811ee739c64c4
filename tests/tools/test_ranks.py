"""Processes of Paddle's launcher: how they share the work and exchange values."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from launching import on_ranks, python_path
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.ranks import Ranks

MEETING = """
import atexit
from ppdiffusers_tome.tools.ranks import Ranks, exit_process

ranks = Ranks.from_environment()
atexit.register(print, "torn down", flush=True)
assert ranks.exchange({"rank": ranks.rank}, "begin") == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
assert list(map(len, ranks.exchange("é" * 100_000 * ranks.rank, "end"))) == [0, 100_000, 200_000]
ranks.check_first_is_alive()
ranks.leave()
exit_process(0)
"""


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
def test_all_ranks_have_all_values_and_end_at_once(tmp_path: Path) -> None:
    script = tmp_path / "meeting.py"
    script.write_text(MEETING)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(Path(__file__).parents[2])}
    run = subprocess.run(on_ranks(3, tmp_path, str(script)), env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert all("torn down" not in path.read_text() for path in (tmp_path / "log").glob("workerlog.*"))
