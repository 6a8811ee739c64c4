"""The notebooks of ``examples``: one in each language, with the same code.

    python tests/examples/notebooks.py        # runs the code and writes what it shows into both

Run it on a quiet machine, as it keeps the seconds, and name that machine in the words above them.
"""

import os
import sys
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = (ROOT / "examples" / f"token_merging{language}.ipynb" for language in ("", ".zh-CN"))


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(book: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def run_code(book: NotebookNode, parameters: str = "") -> NotebookNode:
    """Run a copy's code, with ``parameters`` behind the cell of that tag."""
    book = deepcopy(book)
    for cell in code_cells(book):
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source += f"\n{parameters}"
    client = NotebookClient(book, timeout=1800, resources={"metadata": {"path": str(ENGLISH.parent)}})
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    client.execute(env={**os.environ, "PYTHONPATH": path})
    return book


def list_outputs(cell: NotebookNode) -> list[NotebookNode]:
    """List the outputs of a cell without warnings."""
    return [output for output in cell.outputs if output.get("name") != "stderr"]  # warnings name paths


def write_outputs() -> None:
    """Run the code, and keep in both notebooks what it shows."""
    shown = code_cells(run_code(read(ENGLISH)))
    for path in (ENGLISH, CHINESE):
        book = read(path)
        for cell, other in zip(code_cells(book), shown, strict=True):
            cell.outputs, cell.execution_count = list_outputs(other), other.execution_count
        nbformat.write(book, path)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    sys.exit(write_outputs())
