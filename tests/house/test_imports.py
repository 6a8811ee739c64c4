"""What may import what: one direction, every module in a room, and the picture of it is true."""

from __future__ import annotations

from graphlib import TopologicalSorter

import pytest

from house.rooms import (
    MAY_IMPORT,
    PACKAGE,
    PAGE,
    imported,
    modules,
    modules_imported,
    page_with,
    picture,
    room_of,
    rooms_imported,
)

MODULES = [module for module in modules() if module != "tools"]
# These know no framework, so that settings are checked and `--help` is printed in an instant.
WITHOUT_PADDLE = (
    "__init__", "version", "errors", "settings", "merging.grid", "merging.methods", "patching.adapters",
    "patching.unsupported", "patching.state.reuse", "patching.state.progress", "tuning.candidates", "tuning.results",
    "export.layout", "export.requirements", "export.versions",
)  # fmt: skip


def test_top_level_holds_ten_things_at_most() -> None:
    beside = {"__init__.py", "__main__.py", "version.py", "py.typed", "__pycache__"}
    assert len({path.name for path in PACKAGE.iterdir()} - beside) <= 10


def test_every_room_has_a_module() -> None:
    assert set(MAY_IMPORT) == {room_of(module) for module in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_rooms_below(module: str) -> None:
    rooms = {room_of(other) for other in modules_imported(module)}
    assert rooms <= MAY_IMPORT[room_of(module)] | {room_of(module)}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_nothing_is_allowed_that_no_module_needs(room: str) -> None:
    assert MAY_IMPORT[room] == rooms_imported(room)


def test_rooms_have_no_circle_and_no_way_up() -> None:
    order = list(MAY_IMPORT)
    for room, below in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(room) for other in below), room


def test_modules_have_no_circle() -> None:
    TopologicalSorter({module: modules_imported(module) for module in MODULES}).prepare()


def test_nothing_outside_tools_imports_a_tool() -> None:
    faces = {"__init__", "__main__"}
    importing = {module for module in MODULES for other in modules_imported(module) if other.startswith("tools")}
    assert {module for module in importing if not module.startswith("tools.")} <= faces


def test_picture_of_the_rooms_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with(picture()), "draw it with python tests/house/rooms.py"


@pytest.mark.parametrize("unit", WITHOUT_PADDLE)
def test_module_knows_no_framework_at_run_time(unit: str) -> None:
    left, seen = {module for module in modules() if f"{module}.".startswith(f"{unit}.")}, set()
    own = frozenset(left)
    while left:  # also what those import that it imports
        module = left.pop()
        seen.add(module)
        names = imported(modules()[module], at_run_time=True, at_once=module not in own)
        assert not {name.split(".")[0] for name in names} & {"paddle", "ppdiffusers", "paddlenlp"}, module
        left |= modules_imported(module, at_once=True) - seen


def test_only_install_and_chunked_attention_know_ppdiffusers() -> None:
    """Blocks and hosts are named, not imported, so a release that lacks one does no harm."""
    knowing = {
        module for module in MODULES if not module.startswith(("tools.", "export."))
        for name in imported(modules()[module], at_run_time=True) if name.split(".")[0] == "ppdiffusers"
    }  # fmt: skip
    assert knowing == {"install", "cpu.chunked_attention"}
