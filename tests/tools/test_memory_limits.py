"""Free and total memory: of the machine, or of the control groups that a container, a service or a job runs in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from ppdiffusers_tome.tools.measure import memory

GIB = 2**30
STAT = f"anon 1\nfile {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\nslab 7\n"
STAT_1 = f"inactive_file 9\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}\n"


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, dict[str, object]], None]:
    """A machine of 64 GiB, half of them free, with control groups."""

    def set_up(groups: str, files: dict[str, object]) -> None:
        (tmp_path / "cgroup").write_text(groups)
        for name, content in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(content))
        monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(memory, "_CGROUP_ROOT", tmp_path / "root")
        machine = SimpleNamespace(total=64 * GIB, available=32 * GIB)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)

    return set_up


@pytest.mark.parametrize(
    ("groups", "folder"),
    [
        ("0::/docker/abc\n", ""),  # a container that sees the host's paths
        ("0::/user.slice/session.scope\n", "user.slice/"),  # the limit of a parent
        ("4:memory:/job_7/step_0\n11:cpuset:/\n", "memory/job_7/"),
    ],
)
def test_limits_of_control_groups_count(groups: str, folder: str, system: Callable) -> None:
    """8 GiB, of which 6 are in use, 1.5 of them by cached files."""
    if folder.startswith("memory/"):
        names = {"memory.limit_in_bytes": 8 * GIB, "memory.usage_in_bytes": 6 * GIB, "memory.stat": STAT_1}
    else:
        names = {"memory.max": 8 * GIB, "memory.current": 6 * GIB, "memory.stat": STAT}
    system(groups, {folder + name: value for name, value in names.items()})
    assert memory.get_free_memory() == 3.5 * GIB
    assert memory.get_total_memory() == 8 * GIB


@pytest.mark.parametrize("groups", ["0::/\n", "what\n", "", "4:memory:/\n"])
def test_without_limits_the_machine_counts(groups: str, system: Callable) -> None:
    unlimited = {"memory/memory.limit_in_bytes": 2**63 - 4096, "memory/memory.usage_in_bytes": GIB}
    system(groups, {"memory.max": "max", "memory.current": "x", **unlimited})
    assert memory.get_free_memory() == 32 * GIB
    assert memory.get_total_memory() == 64 * GIB


def test_a_full_group_has_nothing_free(system: Callable) -> None:
    system("0::/\n", {"memory.max": GIB, "memory.current": 2 * GIB})
    assert memory.get_free_memory() == 0
