"""The notebooks of ``examples``: both languages hold the same, and the code runs from top to bottom, offline."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from examples.notebooks import CHINESE, ENGLISH, ROOT, code_cells, ran, read, shown_by
from house.pages import Section, sections

pytestmark = pytest.mark.once

MOST_BYTES = 1_500_000
SMALL = "size, steps = 64, 2"
BOTH = pytest.mark.parametrize("path", [ENGLISH, CHINESE], ids=lambda path: path.name)


def words(path: Path) -> list[str]:
    return [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]


def text_of(book: NotebookNode) -> str:
    """What all cells print and display as text."""
    outputs = [output for cell in code_cells(book) for output in shown_by(cell)]
    return "\n".join(
        each.text if each.output_type == "stream" else each.data.get("text/markdown", "") for each in outputs
    )


def pictures_in(book: NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for cell in code_cells(book) for output in cell.outputs)


def test_both_have_the_same_code_and_show_the_same() -> None:
    one, other = read(ENGLISH), read(CHINESE)
    assert [cell.cell_type for cell in one.cells] == [cell.cell_type for cell in other.cells]
    for mine, yours in zip(code_cells(one), code_cells(other), strict=True):
        assert mine == yours
    assert one.metadata == other.metadata


def test_both_say_the_same(tmp_path: Path) -> None:
    """Headings, code and figures in the words; pages are named in the notebook's language."""
    for number, (english, chinese) in enumerate(zip(words(ENGLISH), words(CHINESE), strict=True)):
        assert re.search(r"[\u4e00-\u9fff]", chinese)
        assert not re.search(r"[\u4e00-\u9fff]", english)
        pages = []
        for name, text in (("en", english), ("zh", chinese.replace("docs/zh/", "docs/en/"))):
            pages.append(tmp_path / f"{number}-{name}.md")
            pages[-1].write_text(text, encoding="utf-8")
        one, two = (
            [(section.level, section.code, section.links) for section in sections(page) if section != Section()]
            for page in pages
        )
        assert one == two


@BOTH
def test_is_valid_small_and_without_warnings_of_a_machine(path: Path) -> None:
    book = read(path)
    nbformat.validate(book)
    assert path.stat().st_size < MOST_BYTES
    for cell in code_cells(book):
        assert cell.outputs == shown_by(cell)
        assert str(ROOT) not in nbformat.v4.writes(nbformat.v4.new_notebook(cells=[cell]))
        for output in cell.outputs:
            told = {"stream": output.get("text", ""), **output.get("data", {})}
            words = "\n".join(str(each) for kind, each in told.items() if not kind.startswith("image/"))
            assert re.findall(r"(?<![\w./:<])/\w+/\w+", words) == []  # nor a folder of whoever ran it


class TestOfTheRun:
    """In small: all its code, at 64 pixels and two steps."""

    @pytest.fixture(scope="class")
    def book(self) -> NotebookNode:
        return ran(read(ENGLISH), SMALL)

    def test_shows_a_picture_wherever_the_notebook_does(self, book: NotebookNode) -> None:
        showing = [number for number, cell in enumerate(code_cells(book)) if re.search(r"show\(", cell.source)]
        pictures = [number for number, cell in enumerate(code_cells(book))
                    if any("image/png" in output.get("data", {}) for output in cell.outputs)]  # fmt: skip
        assert pictures == showing[: len(pictures)]
        assert len(pictures) == len(showing) - 1  # the last needs a GPU
        assert pictures_in(book) == 5

    def test_has_a_table_of_methods(self, book: NotebookNode) -> None:
        rows = re.findall(r"^\| `(\w+)` \| [\d.]+ \| [\d.]+x \| [\d.]+ \|$", text_of(book), re.MULTILINE)
        assert rows == ["tome", "keys", "pool", "todo"]


@pytest.mark.sweep
def test_runs_as_it_is() -> None:
    assert pictures_in(ran(read(ENGLISH))) == 5
