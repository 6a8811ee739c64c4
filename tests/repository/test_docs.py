"""README and docs: links lead somewhere, languages agree, presets and tables follow from what was measured."""

import json
import sys

import pytest

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS
from repository.pages import DOCS, PAGES, README, ROOT, list_targets, sections

FIDELITY = DOCS / "measured" / "fidelity"
sys.path.append(str(FIDELITY.parent))

import choose_presets  # noqa: E402
import tables  # noqa: E402

CHINESE = {page: DOCS / "en" / page.relative_to(DOCS / "zh") for page in PAGES if DOCS / "zh" in page.parents}
CHINESE[ROOT / "README.zh-CN.md"] = README


@pytest.mark.parametrize("page", CHINESE, ids=str)
def test_both_languages_have_the_same_headings_and_code(page):
    english, chinese = sections(CHINESE[page]), sections(page)
    assert [section.level for section in english] == [section.level for section in chinese]
    assert [section.code for section in english] == [section.code for section in chinese]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_and_image_exists(page):
    """The site's build sees docs alone; this sees README as well, and anchors as code hosts make them."""
    for path, anchor in list_targets(page):
        assert path.exists()
        assert not anchor or anchor in {section.anchor for section in sections(path)}, anchor
        assert DOCS not in page.parents or DOCS in path.parents, f"{path} is not on the site: name the file in code"


def test_every_image_of_the_docs_is_shown():
    assert set((DOCS / "images").iterdir()) <= {path for page in PAGES for path, _ in list_targets(page)}


def test_presets_are_those_that_the_evaluations_choose():
    evaluations = [json.loads((FIDELITY / f"{name}.json").read_text()) for name in tables.NAMES[:2]]
    chosen = choose_presets.choose_presets(choose_presets.find_candidates(evaluations))
    configs = {name: ToMeConfig(**candidate.settings) for name, candidate in chosen.items()}
    assert configs == {name: ToMeConfig.preset(name) for name in PRESETS}


def test_tables_are_those_of_the_evaluations():
    """Otherwise run: python docs/measured/tables.py docs/measured/fidelity"""
    for name, content in tables.make_tables(FIDELITY).items():
        assert (FIDELITY / name).read_text(encoding="utf-8") == content, name
