"""What may import what: one direction, everything below knows nothing of what stands above it.

``MAY_IMPORT`` is the truth; ``docs/architecture.md`` points here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ppdiffusers_tome

PACKAGE = Path(ppdiffusers_tome.__file__).parent

# Module, or folder and what it may import of this package, from the bottom to the top.
MAY_IMPORT: dict[str, set[str]] = {
    "version": set(),
    "errors": set(),
    "methods": {"methods"},
    "values": set(),
    "config": {"errors", "methods", "values"},
    "combining": {"config", "errors", "values"},
    "candidates": {"combining", "config", "errors", "values"},
    "grid": set(),
    "constants": set(),
    "paddle_calls": set(),
    "partition": {"constants", "grid"},
    "matching": {"methods"},
    "matchers": {"config", "constants", "grid", "matchers", "matching", "methods", "paddle_calls", "partition"},
    "blocks": {"blocks", "grid"},
    "refused": set(),
    "sites": {"blocks", "config", "methods", "refused"},
    "merged_section": {"matching", "methods"},
    "denoising": set(),
    "reuse": set(),
    "pipeline_call": {"config", "denoising", "reuse"},
    "call": {
        "config", "constants", "errors", "grid", "matchers", "matching", "merged_section", "paddle_calls", "partition",
        "pipeline_call",
    },
    "recomputation": {"paddle_calls"},
    "attachment": {"call", "config", "constants", "denoising", "paddle_calls", "pipeline_call"},
    "hooks": {
        "attachment", "blocks", "call", "config", "grid", "matching", "merged_section", "methods", "paddle_calls",
        "recomputation",
        "sites",
    },
    "port": set(),
    "measure": set(),
    "quality": set(),
    "random_state": set(),
    "parts": {"errors"},
    "applying": {"blocks", "config", "errors", "hooks", "methods", "parts", "port", "refused", "sites"},
    "tuning": {"applying", "candidates", "config", "errors", "measure", "quality", "random_state", "values"},
    "mixin": {"applying", "combining", "config", "errors", "values"},
    "chunked_attention": {"errors", "parts"},
    "install": {"mixin", "pipeline_call"},
    "__init__": {"applying", "chunked_attention", "config", "errors", "install", "mixin", "tuning", "version"},
}
# Whatever is not in the table (demo, commands and their helpers) stands on top of it: it may import all of the table,
# and nothing in the table imports it. Of what stands on top, these may be imported by these alone:
COMMAND_LINE = {"__main__": set(), "cli": {"__main__"}, "commands": {"cli", "commands"}}
# These know no framework, so that settings are checked and `--help` is printed in an instant.
WITHOUT_PADDLE = (
    "__init__", "version", "errors", "values", "config", "combining", "candidates", "grid", "methods", "blocks",
    "refused", "reuse", "denoising",
)  # fmt: skip


def files(unit: str) -> list[Path]:
    folder = PACKAGE / unit
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def units() -> set[str]:
    """Every module and every folder with code of the package."""
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    return modules | {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}


def imports(path: Path, *, at_run_time: bool) -> Iterator[str]:
    """Full names of the modules that a file imports; ``if TYPE_CHECKING:`` counts only when asked for."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        if at_run_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        yield node
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    for node in walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; the package imports by full name"
            if node.module == "ppdiffusers_tome":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


def units_imported(unit: str) -> set[str]:
    names = {name for path in files(unit) for name in imports(path, at_run_time=False)}
    ours = {name.split(".")[1] for name in names if name.startswith("ppdiffusers_tome.")}
    if "ppdiffusers_tome" in names:
        ours.add("__init__")
    # `from ppdiffusers_tome import apply_tome`: a name of the package's face, not a module.
    return {name if name in units() else "__init__" for name in ours}


def test_every_module_of_the_table_exists() -> None:
    assert set(MAY_IMPORT) <= units()


@pytest.mark.parametrize("unit", sorted(units() - set(MAY_IMPORT)))
def test_nothing_but_the_command_line_imports_commands(unit: str) -> None:
    for name in units_imported(unit) & set(COMMAND_LINE):
        assert unit in COMMAND_LINE[name], f"{unit} imports {name}"


@pytest.mark.parametrize("unit", MAY_IMPORT)
def test_module_imports_only_what_stands_below(unit: str) -> None:
    assert units_imported(unit) <= MAY_IMPORT[unit]


def test_table_has_no_circle_and_no_way_up() -> None:
    order = list(MAY_IMPORT)
    for unit, below in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(unit) for other in below - {unit}), unit
        assert below <= set(order)


@pytest.mark.parametrize("unit", WITHOUT_PADDLE)
def test_module_knows_no_framework_at_run_time(unit: str) -> None:
    for path in files(unit):
        frameworks = {name.split(".")[0] for name in imports(path, at_run_time=True)}
        assert not frameworks & {"paddle", "ppdiffusers", "paddlenlp"}, path


def test_only_install_and_chunked_attention_know_ppdiffusers() -> None:
    """Blocks and hosts are named, not imported, so a release that lacks one does no harm."""
    knowing = {
        unit
        for unit in MAY_IMPORT
        for path in files(unit)
        for name in imports(path, at_run_time=True)
        if name.split(".")[0] == "ppdiffusers"
    }
    assert knowing == {"install", "chunked_attention"}
