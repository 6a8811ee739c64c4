"""``bench overhead``: the real contenders on a small problem, and what it writes."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from PIL import Image

from ppdiffusers_tome.tools.cli.program import main
from zoo import specimens

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
    assert table.splitlines()[0].removeprefix("# ") in capsys.readouterr().out


@pytest.mark.sweep  # other systems
def test_overhead_is_measured_where_cores_and_signals_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows; macOS has the signal."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(signal, "SIGKILL")
    assert main(["bench", "overhead", *SMALL, "--output", str(tmp_path)]) == 0
    assert f"cores: {os.cpu_count()}, " in (tmp_path / "overhead.md").read_text()


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


@pytest.mark.sweep  # two grids, three processes each
def test_growth_measures_every_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--sides", "24", "16", "--batch", "1", "--channels", "8", "--tile", "8", "--repeats", "1"]
    assert main(["bench", "growth", *small, "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "growth.json").read_text())["rows"]
    assert [row["side"] for row in rows] == [16, 24]
    for row in rows:
        assert set(row["match"]) == set(row["total"]) == {"ours", "ours, tile and reuse", "port"}
        assert all(row["total"][name]["median"] >= row["match"][name]["median"] for name in row["match"])
    assert "| 24x24 | ours, in tiles |" in (tmp_path / "growth.md").read_text()
    with Image.open(tmp_path / "growth.png") as picture:
        assert len(picture.getcolors(10**6)) > 10
    assert "growth.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sides", "64"], "--sides 64 must be two different sides or more"),
        (["--sides", "64", "4"], "each of 8 tokens or more"),
        (["--ratio", "0.9"], "below 0.75 for a 2x2 stride"),
        (["--ratio", "0"], "merges nothing"),
        (["--channels", "0"], "--channels 0 must be 1 or more"),
    ],
)
def test_growth_refuses_bad_input(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "growth", "--output", str(tmp_path), *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_attach_counts_blocks_and_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "attach", "--model", "sd15-tiny-random", "--repeats", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # One block a level but the last going down, one in the middle, two a level going up.
    assert lines[0].startswith("sd15-tiny-random, 10 blocks; device: ")
    assert [line.split(":")[0] for line in lines[1:]] == ["apply_tome", "remove_tome"]
    assert all(0 < float(line.split()[1]) < 60_000 for line in lines[1:])


def test_attach_refuses_no_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "attach", "--repeats", "0"]) == 2
    assert "--repeats 0 must be 1 or more" in capsys.readouterr().err


def test_families_tells_tokens_and_times_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "families", "--side", "16", "--repeats", "1", "--only", "unet", "sdxl", "prior_transformer"]
    assert main([*asked, "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "families.json").read_text())["rows"]
    # A prior has no grid, so it is left out.
    assert [(row["name"], row["tokens"], row["left"]) for row in rows] == [
        ("sdxl", [64], [32]), ("unet", [256], [128]),
    ]  # fmt: skip
    assert all(row[name]["low"] > 0 for row in rows for name in ("seconds", "merged_seconds", "speed_up"))
    table = (tmp_path / "families.md").read_text()
    assert "| Stable Diffusion 1 and 2 | 16x16 | 256 -> 128 | " in table
    assert table.splitlines()[0].removeprefix("# ") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--side", "8"], "--side 8 must be 16 or more"),
        (["--repeats", "0"], "--repeats 0 must be 1 or more"),
        (["--only", "prior_transformer"], "nothing merges in these"),
        (["--only", "nothing"], "nothing merges in these"),
    ],
)
def test_families_refuses(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "families", *arguments, "--output", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err


def test_families_says_what_ppdiffusers_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = [each for each in specimens() if not each.is_there]
    if not absent:
        pytest.skip("this ppdiffusers has them all")
    assert main(["bench", "families", "--only", "unet", absent[0].name, "--output", str(tmp_path)]) == 2
    assert f"--only {absent[0].name}: needs ppdiffusers {absent[0].since}" in capsys.readouterr().err
