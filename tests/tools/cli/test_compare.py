"""``compare``: its sheet, tables and images."""

from __future__ import annotations

import json
import os

import numpy as np

from ppdiffusers_tome.tools.edges import load_edges
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.comparison import FILES, compare, read_rows
from tools.cli.conftest import PROMPT, ROCKET, heard, pixels_of


def test_a_sheet_tables_and_images_are_written(tmp_path, capsys, generate):
    folder = tmp_path / "compare"
    arguments = ["--ratios", "0.5", "0.7", "--configs", "balanced", "--steps", "2", "--fewer-steps", "1"]
    assert compare(folder, *arguments, "--prompt", PROMPT, "--prompt", ROCKET, "--seeds", "5", "6") == 0
    captured = capsys.readouterr()
    names = ("unmerged", "ratio 0.5", "ratio 0.7", "balanced", "1 step")
    expected = [f"{prompt}, {name}" for prompt in (PROMPT, ROCKET) for _ in range(2) for name in names]
    assert [line.split(":")[0] for line in heard(captured.err)] == expected
    for told in (captured.out, (folder / "compare.md").read_text()):
        assert "photographs model, 64x64 pixels, 2 steps," in told
    assert sorted(path.name for path in folder.iterdir()) == FILES
    rows = read_rows(folder)
    assert list(rows) == list(names)
    cases = [(prompt, seed) for prompt in (PROMPT, ROCKET) for seed in (5, 6)]
    for name, row in rows.items():
        assert [(sample["prompt"], sample["seed"]) for sample in row["samples"]] == cases
        assert (row["psnr_db"] is None) == (name == "unmerged")
        assert f"| {name} |" in (folder / "compare.md").read_text()
        assert any(line.strip().startswith(name) for line in captured.out.splitlines())
    assert rows["unmerged"]["speed_up"] == {"median": 1, "low": 1, "high": 1, "interval": None}
    assert 10 < rows["ratio 0.5"]["psnr_db"]["median"] < 60
    assert read_settings(folder / "compare.png")["run"] == json.loads((folder / "compare.json").read_text())["run"]
    for ratio, kept in (("0", "unmerged-*"), ("0.5", "ratio-0-5-*")):
        generated = generate("--ratio", ratio, "--steps", "2", "--seed", "5", folder=ratio)
        (image,) = folder.glob(f"images/{kept}/a-photo-of-a-cat-*-seed-5.png")
        assert (pixels_of(image) == pixels_of(generated[0])).all()


def test_a_controlnet_is_guided_by_the_edges_of_a_photo(tmp_path, photo):
    assert compare(tmp_path, "--image", str(photo), "--prompt", PROMPT, "--ratios", "0.5") == 0
    assert "guidance 1.5, float32, ControlNet controlnet\n" in (tmp_path / "compare.md").read_text()
    content = json.loads((tmp_path / "compare.json").read_text())
    assert content["run"]["controlnet"]["photo"] == "photo.png"
    sheet = pixels_of(tmp_path / "compare.png")
    assert sheet.shape[1] == 2 * 28 + 3 * 256 + 2 * 16
    column = sheet[:, 28 : 28 + 256]
    shown = column[(column == 0).all(-1).mean(1) > 0.1]
    edges = load_edges(photo, 64, 64)
    assert np.corrcoef(shown.ravel(), np.asarray(edges.resize((256, 256))).ravel())[0, 1] > 0.9


def test_a_cache_alone_has_no_warning_that_it_does_nothing(tmp_path, capsys):
    given = ["--ratios", "0", "--cache", "0.2", "--prompt", PROMPT, "--steps", "9"]
    assert compare(tmp_path, *given) == 0
    assert "warning" not in "".join(heard(capsys.readouterr().err))


def test_nothing_is_lost_when_nobody_reads_the_output(tmp_path, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", os.fdopen(write, "w"))
        assert compare(tmp_path, "--ratios", "0.5", "--prompt", PROMPT) == 141
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
