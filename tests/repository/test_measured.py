"""The presets and the tables of the results follow from the evaluations in docs/measured."""

import json
import sys

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS
from repository.pages import DOCS

FIDELITY = DOCS / "measured" / "fidelity"
sys.path.append(str(FIDELITY.parent))

import choose_presets  # noqa: E402
import tables  # noqa: E402


def test_presets_are_those_that_the_evaluations_choose():
    evaluations = [json.loads((FIDELITY / f"{name}.json").read_text()) for name in tables.NAMES[:2]]
    chosen = choose_presets.choose_presets(choose_presets.find_candidates(evaluations))
    configs = {name: ToMeConfig(**candidate.settings) for name, candidate in chosen.items()}
    assert configs == {name: ToMeConfig.preset(name) for name in PRESETS}


def test_tables_are_those_of_the_evaluations():
    """Otherwise run: python docs/measured/tables.py docs/measured/fidelity"""
    for name, content in tables.make_tables(FIDELITY).items():
        assert (FIDELITY / name).read_text(encoding="utf-8") == content, name
