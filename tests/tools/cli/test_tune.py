"""``tune``: what it writes, and that what it writes can be used."""

from __future__ import annotations

import json

import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tuning import results
from ppdiffusers_tome.tuning.candidates import list_candidates
from ppdiffusers_tome.tuning.measurement import measures_memory
from tools.cli.conftest import PROMPT, SMALL

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


def test_results_are_replaced_on_demand_and_settings_go_where_none_pay(tmp_path, capsys):
    ToMeConfig(ratio=0.1234).save(tmp_path / "tome.json")
    arguments = ["tune", *GIVEN, "--target-psnr", "100", "--output", str(tmp_path)]
    assert main(arguments) == 2
    assert "tome.json exists already" in capsys.readouterr().err
    assert ToMeConfig.load(tmp_path / "tome.json") == ToMeConfig(ratio=0.1234)
    assert main([*arguments, "--overwrite"]) == 0
    assert "No settings reach the target here" in capsys.readouterr().out
    assert json.loads((tmp_path / "tune.json").read_text())["config"] is None
    assert not (tmp_path / "tome.json").exists()
