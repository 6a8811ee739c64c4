"""``tune``: what it tells meanwhile, what it writes, and that what it writes can be used."""

import json

import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tuning import results
from tools.cli.helpers import PROMPT, SMALL

GIVEN = [*SMALL, "--prompt", PROMPT]


@pytest.fixture(autouse=True)
def _any_speed_pays(monkeypatch):
    """What is found does not depend on the machine."""
    monkeypatch.setattr(results, "LEAST_SPEEDUP", 0.0)


def test_the_settings_are_written_and_generate_takes_them(tmp_path, capsys):
    folder = tmp_path / "tuned"
    assert main(["tune", *GIVEN, "--target-psnr", "1", "--output", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "| best |" in (folder / "tune.md").read_text()
    assert "target: PSNR 1 dB\n" in shown.out
    found = json.loads((folder / "tune.json").read_text(), parse_constant=pytest.fail)  # JSON lacks infinity
    assert found["verdict"] in shown.out
    assert (found["unmerged"]["psnr"], found["unmerged"]["speedup"]) == (None, 1)
    configs = [ToMeConfig(**trial["config"]) for trial in found["trials"]]
    assert configs == results.list_candidates(None, [1])
    lines = shown.err.splitlines()
    told = [line for line in lines if " s, " in line]
    assert [line.split(": ")[0] for line in told] == ["unmerged", *(config.summary for config in configs)] * 3
    best = max(found["trials"], key=lambda trial: trial["speedup"])
    assert ToMeConfig.load(folder / "tome.json").to_dict() == best["config"] == found["config"]
    assert shown.out.split()[-3:] == [str(folder / name) for name in ("tome.json", "tune.md", "tune.json")]
    drawn = tmp_path / "drawn"
    assert main(["generate", *GIVEN, "--config", str(folder / "tome.json"), "--output", str(drawn)]) == 0
    assert len(list(drawn.glob("*.png"))) == 1


def test_results_are_replaced_on_demand_and_settings_go_where_none_reach_the_target(tmp_path, capsys):
    ToMeConfig(ratio=0.1234).save(tmp_path / "tome.json")
    ToMeConfig(ratio=0.7).save(tmp_path / "mine.json")
    arguments = ["tune", *GIVEN, "--target-psnr", "100", "--configs", str(tmp_path / "mine.json"), "--output",
                 str(tmp_path)]  # fmt: skip
    assert main(arguments) == 2
    assert "tome.json exists already" in capsys.readouterr().err
    assert ToMeConfig.load(tmp_path / "tome.json") == ToMeConfig(ratio=0.1234)
    assert main([*arguments, "--overwrite"]) == 0
    assert "Nothing faster reaches the target. The nearest is ratio 0.7: " in capsys.readouterr().out
    found = json.loads((tmp_path / "tune.json").read_text())
    assert (found["config"], len(found["trials"])) == (None, 1)
    assert not (tmp_path / "tome.json").exists()


def test_an_interrupt_keeps_what_is_found_by_then(tmp_path, monkeypatch, capsys):
    images, generate = [], LoadedPipeline.generate

    def generate_until_interrupted(*given, **settings):
        images.append(given)
        if len(images) == 5:  # of the second candidate; before are two of the unmerged pipeline and of the first
            raise KeyboardInterrupt
        return generate(*given, **settings)

    monkeypatch.setattr(LoadedPipeline, "generate", generate_until_interrupted)
    given = ["--target-psnr", "1", "--configs", "balanced", "quality", "--output", str(tmp_path)]
    assert main(["tune", *GIVEN, *given]) == 130
    assert ToMeConfig.load(tmp_path / "tome.json") == ToMeConfig.preset("balanced")
    assert len(json.loads((tmp_path / "tune.json").read_text())["trials"]) == 1
    captured, name = capsys.readouterr(), ToMeConfig.preset("balanced").summary
    verdict = f"Stopped with 1 of 2 settings tried ({name}). The best is {name}"
    assert verdict in captured.out
    assert verdict in (tmp_path / "tune.md").read_text()
    assert captured.err.endswith("ppdiffusers-tome: interrupted\n")
