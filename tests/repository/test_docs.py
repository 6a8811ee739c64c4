"""README and docs: links lead somewhere, and both languages have the same headings and code."""

import pytest

from repository.pages import DOCS, PAGES, README, ROOT, list_targets, sections

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
