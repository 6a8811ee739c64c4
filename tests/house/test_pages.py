"""README and docs: both languages say the same, every link leads somewhere, and what is said of the code is so."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

import ppdiffusers_tome
from house import command_line
from house.pages import (
    DOCS,
    README,
    ROOT,
    TRANSLATED_README,
    Section,
    documents,
    resolved,
    sections,
    translated,
    wrapped_lines,
)
from house.rooms import PACKAGE
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.bench.gpu.cost import DEVICES
from ppdiffusers_tome.tools.bench.gpu.estimate import estimated
from ppdiffusers_tome.tools.bench.gpu.families import FAMILIES

# Generated tables, docstrings, long measurements, and what developers of the package read beside its code.
ENGLISH_ONLY = {
    f"docs/en/{name}.md"
    for name in (
        "developers/architecture", "developers/documentation", "reference/api", "reference/coverage",
        "results/bundled-model", "results/gpu-estimate", "results/performance",
    )
}  # fmt: skip
ENGLISH = [README, *sorted((DOCS / "en").rglob("*.md"))]
IN_BOTH = [page for page in ENGLISH if translated(page).exists()]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pairs(page: Path) -> list[tuple[Section, Section]]:
    return list(zip(sections(page), sections(translated(page)), strict=True))


def test_every_page_is_in_both_languages() -> None:
    english = {name(page) for page in ENGLISH}
    assert english >= ENGLISH_ONLY, "a page that is listed is not there"
    alone = english - {name(page) for page in IN_BOTH}
    assert alone == ENGLISH_ONLY, "translate the page, or take it off the list of those in English only"
    chinese = {TRANSLATED_README, *(DOCS / "zh").rglob("*.md")} & set(documents())
    assert chinese == {translated(page) for page in IN_BOTH}, "a Chinese page without an English one"


@pytest.mark.parametrize("page", IN_BOTH, ids=name)
class TestBothLanguages:
    """Of one page; each failure names the sections that have drifted."""

    def test_have_the_same_headings(self, page: Path) -> None:
        assert [each.level for each in sections(page)] == [each.level for each in sections(translated(page))]

    def test_have_the_same_code(self, page: Path) -> None:
        drifted = [(one.title, other.title) for one, other in pairs(page) if one.code != other.code]
        assert not drifted

    def test_have_the_same_figures_in_tables(self, page: Path) -> None:
        drifted = [
            (one.title, other.title, [pair for pair in zip(one.rows, other.rows, strict=False) if pair[0] != pair[1]])
            for one, other in pairs(page) if one.rows != other.rows
        ]  # fmt: skip
        assert not drifted

    def test_have_the_same_figures_and_code_in_sentences(self, page: Path) -> None:
        drifted = [(one.title, other.title, one.spans ^ other.spans) for one, other in pairs(page)]
        assert not [each for each in drifted if each[2]]

    def test_have_the_same_links_and_pictures(self, page: Path) -> None:
        drifted = []
        for one, other in pairs(page):
            here = sorted(_place(page, link) for link in one.links)
            there = sorted(_place(translated(page), link) for link in other.links)
            if here != there:
                drifted.append((one.title, other.title, here, there))
        assert not drifted


def _place(page: Path, link: str) -> tuple[str, int]:
    """What a link leads to, in whichever language: the English file, and the number of the section."""
    target = resolved(page, link)
    if target is None:
        return link, 0
    path, anchor = target
    anchors = [each.anchor for each in sections(path)] if anchor and path.exists() else [anchor]
    number = anchors.index(anchor) if anchor in anchors else -1  # one that is not there, another test names
    english = README if path == TRANSLATED_README else path
    return name(english).replace("docs/zh/", "docs/en/"), number


@pytest.mark.parametrize("page", documents(), ids=name)
def test_every_link_and_picture_is_there(page: Path) -> None:
    """The site's build sees docs alone; this sees README as well, and anchors as code hosts make them."""
    lost = []
    for link in (link for section in sections(page) for link in section.links):
        target = resolved(page, link)
        if target is None:
            continue
        path, anchor = target
        if not path.exists() or (anchor and anchor not in {each.anchor for each in sections(path)}):
            lost.append(link)
        if DOCS in page.parents and DOCS not in path.parents:
            lost.append(f"{link}, which is not on the site: name the file in code")
        if name(page) in ENGLISH_ONLY and anchor and path in IN_BOTH:
            lost.append(f"{link}: on the Chinese site that page has Chinese headings; link without one")
    assert not lost


def test_every_picture_is_shown() -> None:
    shown = {target[0] for page in documents() for section in sections(page) for link in section.links
             if (target := resolved(page, link))}  # fmt: skip
    assert set((DOCS / "images").iterdir()) <= shown


ALONE = [ROOT / f"{page}.md" for page in ("SECURITY", "CONTRIBUTING", "CHANGELOG")]


@pytest.mark.parametrize("page", [*ENGLISH, *map(translated, IN_BOTH), *ALONE], ids=name)
def test_lines_end_with_a_sentence(page: Path) -> None:
    assert not wrapped_lines(page)


def test_files_that_name_a_page_name_one_that_is_there() -> None:
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


def test_speed_ups_by_model_and_size_are_those_of_results_and_estimate() -> None:
    text = (DOCS / "en" / "guides" / "settings.md").read_text(encoding="utf-8")
    measured = (DOCS / "en" / "results" / "index.md").read_text(encoding="utf-8")
    families = {family.title: family.name for family in FAMILIES.values()}
    rows = re.findall(r"^\| (\S.*?) \| (\d+)x\d+ \| `(\w+)` \| (\S+) \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
    assert len(rows) > 10
    for model, size, preset, on_cpu, *on_gpus in rows:
        for device, told in zip(DEVICES, on_gpus, strict=True):
            kept = estimated(families[model], int(size), device.name)
            expected = "-" if kept is None else f"{kept.speed_up(preset):.2f}x"
            assert told == expected, (model, size, preset, device.name)
        if on_cpu != "-":
            assert model == "Stable Diffusion 1.5"
            found = re.findall(r"\((\S+?x)\)", re.search(rf"^\| preset {preset}.*$", measured, re.MULTILINE)[0])
            assert on_cpu == found[(512, 768, 1024).index(int(size))], (size, preset)


def test_speed_ups_of_the_readme_are_those_of_the_pages() -> None:
    pages = ("guides/settings", "guides/gpu", "results/index", "get-started/first-pictures")
    told = "".join((DOCS / "en" / f"{page}.md").read_text(encoding="utf-8") for page in pages)
    speed_ups = re.findall(r"\d\.\d\dx", README.read_text(encoding="utf-8"))
    assert len(speed_ups) > 10
    assert set(speed_ups) <= set(re.findall(r"\d\.\d\dx", told))


@pytest.mark.parametrize("page", command_line.PAGES, ids=name)
def test_the_command_line_is_what_the_program_prints(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert sorted(command_line.shown_commands(text)) == sorted(command_line.every_command())
    assert command_line.with_help(text) == text, "write it anew with python tests/house/command_line.py"


def test_messages_that_troubleshooting_explains_are_those_of_the_code() -> None:
    """Values in them are dots."""
    page = (DOCS / "en" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    messages = [message for message in messages if not message.startswith("kernel")]  # Paddle's own
    assert len(messages) > 10
    told = "\n".join(_texts())
    for message in messages:
        pieces = re.split(r"\s*\.\.\.\s*|^ToMe: |^NothingToMergeError: |^ratio=", message)
        assert all(piece in told for piece in pieces), message


def _texts() -> list[str]:
    """Every text of the package, also those with values in them."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found
