"""``tune``: what it writes, and that what it writes can be used."""

from __future__ import annotations

import json

import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tuning import results
from ppdiffusers_tome.tuning.candidates import list_candidates
from ppdiffusers_tome.tuning.measurement import measures_memory
from tools.cli.conftest import PROMPT, SMALL, interrupting

GIVEN = [*SMALL, "--prompt", PROMPT]
pytestmark = pytest.mark.skipif(not measures_memory(), reason="Paddle 2.6 measures no memory, the target here")


@pytest.fixture(autouse=True)
def _any_speed_pays(monkeypatch):
    """What is found does not depend on the machine."""
    monkeypatch.setattr(results, "LEAST_SPEED_UP", 0.0)


def test_the_settings_are_written_and_generate_takes_them(tmp_path, capsys):
    folder = tmp_path / "tuned"
    # Memory that any settings keep to: the first of each family will do, however fast the machine is.
    given = ["--method", "keys", "--tile", "16", "--tome-seed", "3"]
    assert main(["tune", *GIVEN, "--max-memory", "64GiB", *given, "--output", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "| chosen |" in (folder / "tune.md").read_text()
    assert "target: memory 65,536 MiB\n" in shown
    found = json.loads((folder / "tune.json").read_text())
    settings = dict(method="keys", tile=16, seed=3)
    expected = [configs[0].to_dict() for configs in list_candidates(settings, steps=1).values()]
    assert [trial["config"] for trial in found["trials"]] == expected
    assert found["verdict"] in shown
    best = max(found["trials"], key=lambda trial: trial["psnr_db"] or float("inf"))
    assert ToMeConfig.load(folder / "tome.json").to_dict() == best["config"] == found["config"]
    assert shown.split()[-3:] == [str(folder / name) for name in ("tome.json", "tune.md", "tune.json")]
    drawn = tmp_path / "drawn"
    assert main(["generate", *GIVEN, "--config", str(folder / "tome.json"), "--output", str(drawn)]) == 0
    assert len(list(drawn.glob("*.png"))) == 1


def test_a_stopped_search_resumes_and_another_target_adds_to_it(tmp_path, capsys):
    arguments = ["tune", *GIVEN, "--max-memory", "64GB", "--output", str(tmp_path)]
    with interrupting(LoadedPipeline, "generate", 4):  # after a warm-up, the unmerged image and two candidates
        assert main(arguments) == 130
    lines = (tmp_path / "tune.jsonl").read_text().splitlines()
    assert not (tmp_path / "tune.json").exists()
    assert main(arguments) == 0
    assert (tmp_path / "tune.jsonl").read_text().splitlines()[: len(lines)] == lines
    trials = json.loads((tmp_path / "tune.json").read_text())["trials"]
    results = [json.loads(line) for line in (tmp_path / "tune.jsonl").read_text().splitlines()]
    assert [line["result"] for line in results if "result" in line] == trials  # each was tried once
    assert (tmp_path / "tome.json").exists()
    # A ledger of another version is told.
    ledger = tmp_path / "tune.jsonl"
    ledger.write_text("\n".join(line.replace('"family"', '"kind"') for line in ledger.read_text().splitlines()) + "\n")
    assert main(arguments) == 2
    assert "tune.jsonl is of another version; give --overwrite" in capsys.readouterr().err
    ledger.write_text("\n".join(map(json.dumps, results)) + "\n")
    # Another target takes what was tried; without settings that reach it, those of the first go.
    assert main(["tune", *GIVEN, "--target-psnr", "100", "--output", str(tmp_path)]) == 0
    assert "No settings reach the target here" in capsys.readouterr().out
    assert (tmp_path / "tune.jsonl").read_text().splitlines()[: len(results)] == list(map(json.dumps, results))
    assert not (tmp_path / "tome.json").exists()
    assert json.loads((tmp_path / "tune.json").read_text())["config"] is None
    ToMeConfig(ratio=0.1234).save(tmp_path / "tome.json")  # as export does, too
    before = (tmp_path / "tome.json").read_bytes()
    assert main(["tune", *GIVEN, "--target-psnr", "100", "--output", str(tmp_path)]) == 2
    assert "tome.json exists already" in capsys.readouterr().err
    assert (tmp_path / "tome.json").read_bytes() == before
