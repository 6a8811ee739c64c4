"""``bench prompts``: the simulation at a size that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdiffusers_tome.tools.cli.program import main

pytestmark = pytest.mark.once


def test_prompts_are_simulated_and_nothing_is_left_but_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--lines", "120", "--ranks", "3", "--pictures-per-folder", "10", "--start-lines", "500"]
    assert main(["bench", "prompts", *asked, "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "prompts.json").read_text())
    rows = {row["what"]: row for row in results["rows"]}
    assert len(rows) == 8
    assert all(row["seconds"] > 0 and 2**20 < row["peak_bytes"] < 2**30 for row in rows.values())
    there = [row["pictures"] for row in rows.values()]
    assert there[0] == 0
    assert 0 < there[1] == there[2] < 120  # killed halfway
    assert there[3:] == [None, 120, 120, 0, 0]
    # Pictures, folders, manifests, and what ranks keep: never much more than pictures in a folder.
    assert 10 < results["most_files"] < 10 + 11 + 3 + 2 * 3 + 5
    page = (tmp_path / "prompts.md").read_text()
    assert "a simulation: " in page
    assert page.splitlines()[0].removeprefix("# ") in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.json", "prompts.md"]


@pytest.mark.parametrize("option", ["--lines", "--ranks", "--at-once", "--batch-size", "--start-lines"])
def test_prompts_refuses(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "prompts", option, "0", "--output", str(tmp_path)]) == 2
    assert f"{option} 0 must be 1 or more" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
