"""README and docs: links lead somewhere, both languages have the same headings and code, the reference is complete."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import ppdiffusers_tome
from house.pages import DOCS, README, ROOT, TRANSLATED_README, chinese_page, documents, resolve_link, sections
from ppdiffusers_tome.settings.config import ToMeConfig

ENGLISH = [README, *sorted((DOCS / "en").rglob("*.md"))]
IN_BOTH = [page for page in ENGLISH if chinese_page(page).exists()]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_every_chinese_page_has_an_english_one() -> None:
    assert {TRANSLATED_README, *(DOCS / "zh").rglob("*.md")} == {chinese_page(page) for page in IN_BOTH}


@pytest.mark.parametrize("page", IN_BOTH, ids=name)
def test_both_languages_have_the_same_headings_and_code(page: Path) -> None:
    english, chinese = sections(page), sections(chinese_page(page))
    assert [section.level for section in english] == [section.level for section in chinese]
    assert [section.code for section in english] == [section.code for section in chinese]


@pytest.mark.parametrize("page", documents(), ids=name)
def test_every_link_and_image_exists(page: Path) -> None:
    """The site's build sees docs alone; this sees README as well, and anchors as code hosts make them."""
    lost = []
    for link in (link for section in sections(page) for link in section.links):
        target = resolve_link(page, link)
        if target is None:
            continue
        path, anchor = target
        if not path.exists() or (anchor and anchor not in {section.anchor for section in sections(path)}):
            lost.append(link)
        if DOCS in page.parents and DOCS not in path.parents:
            lost.append(f"{link}, which is not on the site: name the file in code")
    assert not lost


def test_every_image_of_the_docs_is_shown() -> None:
    links = {target[0] for page in documents() for section in sections(page) for link in section.links
             if (target := resolve_link(page, link))}  # fmt: skip
    assert set((DOCS / "images").iterdir()) <= links


def test_files_name_pages_that_exist() -> None:
    for folder in ("ppdiffusers_tome", "tests", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for page in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
                assert (ROOT / page).exists(), f"{name(path)} names {page}"


def test_the_arguments_are_those_of_the_config() -> None:
    text = (DOCS / "en" / "reference" / "arguments.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", text, re.MULTILINE))
    assert listed.pop("config") == "None"
    assert listed == {field.name: str(field.default).replace("tome", '"tome"') for field in fields(ToMeConfig)}


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "en" / "reference" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: ppdiffusers_tome\.(?:[\w.]+\.)?(\w+)$", text, re.MULTILINE))
    assert {*ppdiffusers_tome.__all__} - {"__version__"} <= listed
