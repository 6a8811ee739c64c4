"""``compare``: its files, and that its columns differ in the settings alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np

import tiny
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.conftest import PROMPT, ROCKET, SMALL, heard, pixels_of

FILES = ["compare", "compare.json", "compare.jsonl", "compare.md", "compare.png"]


def compare(folder: Path, *arguments: str) -> int:
    return main(["compare", *SMALL, "--output", str(folder), *arguments])


def test_a_sheet_tables_and_images_are_written(tmp_path, capsys, generate, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    folder = tmp_path / "compare"
    arguments = ["--ratios", "0.5", "0.7", "--configs", "fast", "--prompt", PROMPT, "--prompt", ROCKET, "--steps", "2"]
    assert compare(folder, *arguments, "--fewer-steps", "1", "--seed", "5") == 0
    captured = capsys.readouterr()
    lines = heard(captured.err)  # no terminal
    assert [line.split(":")[0] for line in lines] == [f"image {number} of 10" for number in range(1, 11)]
    assert lines[0].startswith(f"image 1 of 10: {PROMPT}, unmerged, ")
    for told in (captured.out, (folder / "compare.md").read_text()):
        assert told.count("the machine was busy (load 99.0 on ") == 1
    assert sorted(path.name for path in folder.iterdir()) == FILES
    content = json.loads((folder / "compare.json").read_text())
    rows = {row["configuration"]["name"]: row for row in content["configurations"]}
    assert list(rows) == ["unmerged", "ratio 0.5", "ratio 0.7", "fast", "1 step"]
    for name, row in rows.items():
        assert [(sample["prompt"], sample["seed"]) for sample in row["samples"]] == [(PROMPT, 5), (ROCKET, 6)]
        assert (row["psnr_db"] is None) == (name == "unmerged")
        assert f"| {name} |" in (folder / "compare.md").read_text()
        assert any(line.strip().startswith(name) for line in captured.out.splitlines())
    assert rows["ratio 0.5"]["psnr_db"]["median"] > 10
    assert read_settings(folder / "compare.png")["run"] == content["run"]
    generated = generate("--ratio", "0", "--steps", "2", "--seed", "5", prompts=(PROMPT, ROCKET))
    references = sorted((folder / "compare" / "references").iterdir())
    assert [pixels_of(path).tobytes() for path in references] == [pixels_of(path).tobytes() for path in generated]


def test_a_controlnet_is_guided_by_the_edges_of_a_photo(tmp_path, photo):
    assert compare(tmp_path, "--image", str(photo), "--prompt", PROMPT, "--ratios", "0.5") == 0
    content = json.loads((tmp_path / "compare-controlnet.json").read_text())
    assert content["run"]["controlnet"]["edges"]["file"] == "photo.png"
    sheet = pixels_of(tmp_path / "compare-controlnet.png")
    assert sheet.shape[1] == 2 * 28 + 3 * 256 + 2 * 16
    column = sheet[:, 28 : 28 + 256]
    shown = column[(column == 0).all(-1).mean(1) > 0.1]
    edges = EdgeSource(photo).load(64, 64)
    assert np.corrcoef(shown.ravel(), np.asarray(edges.resize((256, 256))).ravel())[0, 1] > 0.9


def test_a_scheduler_that_cannot_run_one_step(tmp_path, capsys):
    """PNDM with Runge-Kutta steps, ppdiffusers' default, takes four or more; a warm-up needs one elsewhere."""
    model = Path(shutil.copytree(tiny.EMOJI, tmp_path / "model"))
    config = json.loads((model / "scheduler/scheduler_config.json").read_text())
    (model / "scheduler/scheduler_config.json").write_text(json.dumps(config | {"skip_prk_steps": False}))
    given = ["--model", str(model), "--steps", "4", "--prompt", "bird"]
    assert compare(tmp_path / "a", *given, "--ratios", "0.5") == 0
    assert compare(tmp_path / "b", *given, "--ratios", "--fewer-steps", "2") == 2
    assert "PNDMScheduler cannot run 2 steps here" in capsys.readouterr().err
    assert main(["tune", *SMALL, *given, "--configs", "balanced", "--output", str(tmp_path / "c")]) == 0


def test_nothing_is_lost_when_nobody_reads_the_output(tmp_path, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", os.fdopen(write, "w"))
        assert compare(tmp_path, "--ratios", "0.5", "--prompt", PROMPT) == 141
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
