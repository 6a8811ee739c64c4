"""The notebooks of ``examples``: both languages hold the same, and the code runs from top to bottom, offline."""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from examples.notebooks import CHINESE, ENGLISH, ROOT, code_cells, list_outputs, read, run_code
from repository.pages import Section, find_sections

MOST_BYTES = 1_500_000
SMALL = "size, steps = 64, 2"
BOTH = pytest.mark.parametrize("path", [ENGLISH, CHINESE], ids=lambda path: path.name)


def list_texts(path: Path) -> list[str]:
    return [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]


def has_image(cell: NotebookNode) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def test_both_have_the_same_code_and_show_the_same():
    one, other = read(ENGLISH), read(CHINESE)
    assert [cell.cell_type for cell in one.cells] == [cell.cell_type for cell in other.cells]
    for mine, yours in zip(code_cells(one), code_cells(other), strict=True):
        assert mine == yours
    assert one.metadata == other.metadata


def test_both_say_the_same():
    """Headings, code and figures in the words; pages are named in the notebook's language."""
    for english, chinese in zip(list_texts(ENGLISH), list_texts(CHINESE), strict=True):
        assert re.search(r"[\u4e00-\u9fff]", chinese)
        assert not re.search(r"[\u4e00-\u9fff]", english)
        one, two = (
            [(section.level, section.code, section.links) for section in find_sections(text) if section != Section()]
            for text in (english, chinese.replace("docs/zh/", "docs/en/"))
        )
        assert one == two


@BOTH
def test_is_valid_small_and_without_warnings_of_a_machine(path):
    book = read(path)
    nbformat.validate(book)
    assert path.stat().st_size < MOST_BYTES
    for cell in code_cells(book):
        assert cell.outputs == list_outputs(cell)
        assert str(ROOT) not in nbformat.v4.writes(nbformat.v4.new_notebook(cells=[cell]))
        for output in cell.outputs:
            told = {"stream": output.get("text", ""), **output.get("data", {})}
            words = "\n".join(str(each) for kind, each in told.items() if not kind.startswith("image/"))
            assert re.findall(r"(?<![\w./:<])/\w+/\w+", words) == []  # nor a folder of whoever ran it


def test_the_run_shows_an_image_wherever_the_notebook_does():
    """In small: all its code, at 64 pixels and two steps."""
    cells = code_cells(run_code(read(ENGLISH), SMALL))
    showing = [number for number, cell in enumerate(cells) if re.search(r"show\(", cell.source)]
    images = [number for number, cell in enumerate(cells) if has_image(cell)]
    assert images == showing[:-1]  # the last needs a GPU
    assert len(images) == 5


@pytest.mark.sweep
def test_runs_as_it_is():
    assert sum(map(has_image, code_cells(run_code(read(ENGLISH))))) == 5
