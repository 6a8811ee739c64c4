"""``compare``: its files, and that its columns differ in the settings alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.conftest import PROMPT, SMALL, Gone, heard, pixels_of

ROCKET = "a photo of a rocket"
FEW = ["--ratios", "0.5", "0.7", "--prompt", PROMPT, "--prompt", ROCKET]
FILES = ["compare", "compare.json", "compare.jsonl", "compare.md", "compare.png"]


def compare(folder: Path, *arguments: str) -> int:
    return main(["compare", *SMALL, "--output", str(folder), *arguments])


def read_names(folder: Path) -> list[str]:
    content = json.loads((folder / "compare.json").read_text())
    return [row["configuration"]["name"] for row in content["configurations"]]


def test_a_sheet_tables_and_images_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], generate: Callable[..., list[Path]]
) -> None:
    folder = tmp_path / "compare"
    assert compare(folder, *FEW, "--steps", "2", "--fewer-steps", "1", "--seed", "5") == 0
    captured = capsys.readouterr()
    assert heard(captured.err) == []
    assert sorted(path.name for path in folder.iterdir()) == FILES
    content = json.loads((folder / "compare.json").read_text())
    unmerged, half, most, fewer = content["configurations"]
    assert [row["configuration"]["tome"]["ratio"] for row in (half, most)] == [0.5, 0.7]
    assert (fewer["configuration"]["tome"], fewer["configuration"]["steps"]) == (None, 1)
    for row in (unmerged, half, most, fewer):
        assert [(sample["prompt"], sample["seed"]) for sample in row["samples"]] == [(PROMPT, 5), (ROCKET, 6)]
        assert row["seconds"]["median"] > 0
    assert unmerged["speed_up"]["median"] == 1.0
    assert unmerged["psnr_db"] is unmerged["configuration"]["tome"] is None
    assert half["psnr_db"]["median"] > 10
    assert content["run"]["seed"] == 5
    assert read_settings(folder / "compare.png")["run"] == content["run"]
    for name in ("unmerged", "ratio 0.5", "ratio 0.7", "1 step"):
        assert f"| {name} |" in (folder / "compare.md").read_text()
        assert any(line.strip().startswith(name) for line in captured.out.splitlines())
    generated = generate("--ratio", "0", "--steps", "2", "--seed", "5", prompts=(PROMPT, ROCKET))
    references = sorted((folder / "compare" / "references").iterdir())
    assert [pixels_of(path).tobytes() for path in references] == [pixels_of(path).tobytes() for path in generated]


def test_a_stopped_comparison_resumes_and_a_finished_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generate, calls = LoadedPipeline.generate, []

    def stop(*values: Any, **settings: Any) -> Any:
        if len(calls) == 5:
            raise KeyboardInterrupt
        calls.append(values)
        return generate(*values, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(LoadedPipeline, "generate", stop)
        assert compare(tmp_path, *FEW) == 130
    lines = (tmp_path / "compare.jsonl").read_text()
    assert compare(tmp_path, *FEW) == 0
    assert (tmp_path / "compare.jsonl").read_text().startswith(lines)
    assert compare(tmp_path, *FEW) == 2
    assert "compare.png exists already" in capsys.readouterr().err
    (tmp_path / "compare.json").unlink()  # the last that a run writes
    assert compare(tmp_path, *FEW) == 0


def test_a_controlnet_is_guided_by_the_edges_of_a_photo(tmp_path: Path, photo: Path) -> None:
    assert compare(tmp_path, "--image", str(photo), "--prompt", PROMPT, "--ratios", "0.5") == 0
    content = json.loads((tmp_path / "compare-controlnet.json").read_text())
    assert content["run"]["controlnet"]["edges"]["file"] == "photo.png"
    sheet = pixels_of(tmp_path / "compare-controlnet.png")
    assert sheet.shape[1] == 2 * 28 + 3 * 256 + 2 * 16
    column = sheet[:, 28 : 28 + 256]
    shown = column[(column == 0).all(-1).mean(1) > 0.1]
    edges = EdgeSource(photo).load(64, 64)
    assert np.corrcoef(shown.ravel(), np.asarray(edges.resize((256, 256))).ravel())[0, 1] > 0.9


def test_presets_and_files_of_settings_are_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ToMeConfig(0.3, method="prune").save(tmp_path / "mine.json")
    arguments = ["--prompt", PROMPT, "--configs", "fast", str(tmp_path / "mine.json")]
    assert compare(tmp_path / "out", *arguments, "--ratios", "0.5") == 0
    assert read_names(tmp_path / "out") == ["unmerged", "ratio 0.5", "fast", "mine"]
    assert compare(tmp_path / "alone", *arguments) == 0
    assert read_names(tmp_path / "alone") == ["unmerged", "fast", "mine"]
    assert compare(tmp_path / "none", "--ratios", "0") == 2
    assert "--ratios 0 leaves nothing to compare" in capsys.readouterr().err


def test_nothing_is_lost_when_nobody_reads_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Gone())
    code = compare(tmp_path, "--ratios", "0.5", "--prompt", PROMPT)
    monkeypatch.undo()
    assert code == 141
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
