"""``bench overhead``: the real contenders on a small problem, and what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ppdiffusers_tome.cli import main

SMALL = ["--batch", "1", "--grid-height", "16", "--grid-width", "12", "--channels", "64", "--repeats", "2"]
SMALL += ["--tile", "8", "--blocks", "2", "--reuse-steps", "2"]


def test_overhead_measures_ours_beside_the_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "overhead", *SMALL, "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "overhead.json").read_text())
    assert set(found["milliseconds"]) == {"ours", "ours, tile and reuse", "port"} == set(found["peak_bytes"])
    for stages in found["milliseconds"].values():
        assert set(stages) == {"match", "merge", "unmerge", "merge + unmerge", "all", "a step of all blocks"}
        for spread in stages.values():
            assert 0 < spread["low"] <= spread["median"] <= spread["high"]
    input_bytes = 16 * 12 * 64 * 4
    for peak in found["peak_bytes"].values():
        # The results alone: half as many tokens and all tokens. The port stands far above.
        assert 1.5 * input_bytes <= peak["held"]
        assert 0 <= peak["working"] <= peak["held"]
    assert found["peak_bytes"]["port"]["working"] > found["peak_bytes"]["ours"]["working"]
    assert found["run"]["height"] == 16
    table = (tmp_path / "overhead.md").read_text()
    assert "port / ours" in table
    assert table in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--batch", "0"], "--batch 0 must be 1 or more"),
        (["--blocks", "0"], "--blocks 0 must be 1 or more"),
        (["--tile", "1"], "tile=1 must be at least 2"),
        (["--reuse-steps", "0"], "reuse_steps=0 must be 1"),
        (["--ratio", "0.8"], "below 0.75 for a 2x2 stride"),
        (["--ratio", "0.001"], "merges nothing"),
        (["--torch-python", "/nowhere/python"], "could not run tomesd"),
        (["--torch-python", sys.executable], "could not run tomesd"),
    ],
)
def test_overhead_refuses_bad_input(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "overhead", *SMALL, "--output", str(tmp_path), *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
