"""The presets and the tables of the fidelity page follow from the evaluations in docs/measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs" / "measured"
NAMES = ("bundled", "bundled-dit", "bundled-tiles", "bundled-steps")
EVALUATIONS = [MEASURED / "fidelity" / f"{name}.json" for name in NAMES]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, MEASURED / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for what their annotations name
    spec.loader.exec_module(module)
    return module


frontier, choices, choose_presets = load("frontier"), load("choices"), load("choose_presets")  # which imports it


def test_presets_are_those_that_the_evaluations_choose() -> None:
    candidates = choose_presets.candidates([json.loads(path.read_text()) for path in EVALUATIONS[:2]])
    chosen = {name: ToMeConfig.from_dict(preset.settings) for name, preset in choose_presets.chosen(candidates).items()}
    assert chosen == {name: ToMeConfig.preset(name) for name in presets()}


def test_the_page_shows_the_evaluations() -> None:
    evaluations = [frontier.read(path) for path in EVALUATIONS]
    shown = [line for _, points in evaluations[:2] for line in frontier.goals(points)]
    shown += frontier.table(evaluations[:2]) + frontier.table(evaluations[2:3]) + frontier.table(evaluations[3:])
    results = [json.loads(path.read_text()) for path in EVALUATIONS]
    shown += choices.table(results) + choose_presets.table(choose_presets.candidates(results[:2]))
    page = (ROOT / "docs" / "en" / "results" / "fidelity.md").read_text().splitlines()
    assert [line for line in shown if line.startswith("|") and line not in page] == []
