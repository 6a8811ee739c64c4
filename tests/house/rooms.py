"""The rooms of the package, what each may import, and their picture in ``docs/en/developers/architecture.md``.

    python tests/house/rooms.py        # draws the picture anew, from what the modules import
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ppdiffusers_tome"
PAGE = ROOT / "docs" / "en" / "developers" / "architecture.md"
BEGIN, END = "<!-- drawn by tests/house/rooms.py -->", "<!-- as far as here -->"

# Room, and the rooms that it may import, from the bottom to the top. A module belongs to the room with the longest name
# that its own begins with.
MAY_IMPORT: dict[str, set[str]] = {
    "version": set(),
    "errors": set(),
    "cpu": set(),
    "merging": set(),
    "settings": {"errors", "merging"},
    "patching": {"errors", "merging", "settings"},
    "cpu.chunked_attention": {"errors", "merging", "patching"},
    "api": {"errors", "settings", "patching"},
    "install": {"api", "patching"},
    "export": {"errors", "settings", "patching"},
    "tuning.measurement": set(),
    "tuning.random_state": set(),
    "tuning": {"errors", "settings", "patching", "tuning.measurement", "tuning.random_state"},
    "tools.files": {"errors"},
    "tools.measure": {"cpu", "errors", "tuning.measurement"},
    "tools.cli.console": {"cpu", "errors", "settings", "tools.files"},
    "tools.demo_model": {"errors"},
    "tools.generation": {
        "version", "errors", "merging", "settings", "patching", "cpu.chunked_attention", "api", "export", "tools.files",
        "tools.measure", "tools.cli.console", "tools.demo_model",
    },
    "tools.figures": {
        "errors", "merging", "patching", "tools.files", "tools.measure", "tools.cli.console", "tools.generation",
    },
    "tools.doctor": {
        "version", "errors", "merging", "settings", "patching", "export", "tuning.random_state", "tools.measure",
    },
    "tools.bench": {
        "cpu", "errors", "merging", "settings", "patching", "cpu.chunked_attention", "api", "install",
        "tuning.measurement", "tools.files",
        "tools.measure", "tools.cli.console", "tools.generation", "tools.figures",
    },
    "tools.evaluate": {
        "errors", "settings", "patching", "api", "tools.files", "tools.measure", "tools.cli.console",
        "tools.generation", "tools.figures", "tools.bench",
    },
    "tools.batch": {
        "errors", "settings", "export", "tools.files", "tools.measure", "tools.cli.console", "tools.generation",
    },
    "tools.play": {
        "errors", "merging", "settings", "patching", "tools.measure", "tools.cli.console", "tools.generation",
        "tools.figures", "tools.evaluate",
    },
    "tools.training": {
        "cpu", "cpu.chunked_attention", "api", "tools.files", "tools.measure", "tools.demo_model", "tools.generation",
    },
    "tools.cli": {
        "errors", "merging", "settings", "patching", "cpu.chunked_attention", "api", "export", "tools.files",
        "tools.measure",
        "tools.cli.console", "tools.demo_model", "tools.generation", "tuning", "tools.figures", "tools.doctor",
        "tools.bench", "tools.evaluate", "tools.batch", "tools.play",
    },
    "tools.cli.program": {"version", "errors", "tools.measure", "tools.cli.console", "tools.batch", "tools.cli"},
    "__main__": {"tools.cli.program"},
    # The face of the package hands names on; nothing imports it.
    "__init__": {
        "version", "cpu", "errors", "settings", "patching", "cpu.chunked_attention", "api", "install", "tuning",
    },
}  # fmt: skip


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name in it: ``merging.grid``; a folder's ``__init__`` by the folder's."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """The room that a module belongs to.

    Raises:
        KeyError: it belongs to none.
    """
    fitting = [room for room in MAY_IMPORT if f"{module}.".startswith(f"{room}.")]
    if not fitting:
        raise KeyError(f"{module} belongs to no room of {Path(__file__).name}")
    return max(fitting, key=len)


def imported(path: Path, *, at_run_time: bool = False, at_once: bool = False) -> Iterator[str]:
    """Full names of what a file imports, wherever in it.

    Args:
        path: the file.
        at_run_time: but for ``if TYPE_CHECKING:``.
        at_once: but for what functions import when they are called.
    """

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        if at_run_time and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                yield from walk(child)
            return
        if at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        yield node
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    for node in walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; the package imports by full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_imported(module: str, *, at_once: bool = False) -> set[str]:
    """The modules of the package that a module imports; ``at_once``: when it is imported itself."""
    found = set()
    for name in imported(modules()[module], at_run_time=at_once, at_once=at_once):
        package, _, inside = name.partition(".")
        if package != "ppdiffusers_tome":
            continue
        # A name of a module, or of something in one.
        while inside and inside not in modules():
            inside = inside.rpartition(".")[0]
        found.add(inside or "__init__")
    return found - {module}


def rooms_imported(room: str) -> set[str]:
    """The other rooms that a room imports."""
    of_room = [module for module in modules() if module != "tools" and room_of(module) == room]
    return {room_of(other) for module in of_room for other in modules_imported(module)} - {room}


def picture() -> str:
    """The rooms as a Mermaid graph: an arrow for each import, but for those that other arrows imply."""
    order = [room for room in MAY_IMPORT if room not in ("version", "errors", "__init__", "__main__")]
    uses = {room: rooms_imported(room) & set(order) for room in order}
    below: dict[str, set[str]] = {}
    for room in order:  # from the bottom, so what is below the ones used is known
        below[room] = uses[room].union(*(below[other] for other in uses[room]))
    lines = ["```mermaid", "graph BT"]
    tools = [f"        {_node(room)}" for room in order if room.startswith("tools.")]
    lines += ["    subgraph tools", *tools, "    end"]
    lines += [f"    {_node(room)}" for room in order if not room.startswith("tools.")]
    for room in order:
        direct = [other for other in uses[room] if not any(other in below[third] for third in uses[room] - {other})]
        lines += [f"    {other.replace('.', '_')} --> {room.replace('.', '_')}" for other in sorted(direct)]
    return "\n".join([*lines, "```"])


def page_with(drawn: str) -> str:
    """The text of the page with the picture in its place."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{drawn}\n{END}{after}"


def _node(room: str) -> str:
    return f"{room.replace('.', '_')}[{room.removeprefix('tools.')}]"


if __name__ == "__main__":
    PAGE.write_text(page_with(picture()), encoding="utf-8")
