"""The presets and the tables of the results follow from the evaluations in docs/measured."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs" / "measured"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, MEASURED / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for what their annotations name
    spec.loader.exec_module(module)
    return module


tables = load("tables")
choose_presets = tables.choose_presets


def test_presets_are_those_that_the_evaluations_choose() -> None:
    evaluations = [json.loads((MEASURED / "fidelity" / f"{name}.json").read_text()) for name in tables.NAMES[:2]]
    chosen = choose_presets.choose_presets(choose_presets.find_candidates(evaluations))
    configs = {name: ToMeConfig.from_dict(candidate.settings) for name, candidate in chosen.items()}
    assert configs == {name: ToMeConfig.preset(name) for name in presets()}


def test_tables_are_those_of_the_evaluations() -> None:
    """Otherwise run: python docs/measured/tables.py docs/measured/fidelity"""
    for name, content in tables.make_tables(MEASURED / "fidelity").items():
        assert (MEASURED / "fidelity" / name).read_text(encoding="utf-8") == content, name


@pytest.mark.parametrize("page", ["fidelity", "performance", "gpu-estimate", "bundled-model"])
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / "en" / "results" / f"{page}.md").read_text(encoding="utf-8")
    for pattern in re.findall(r"`([\w.*-]+\.csv)`", text):
        assert list(MEASURED.rglob(pattern)), pattern
