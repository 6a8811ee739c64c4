"""Free and total memory: of the machine, or of the control group of a container."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from ppdiffusers_tome.tools.measure import memory

GIB = 2**30
LIMITS = {
    "none": {"memory.max": "max", "memory.current": "x", "memory.stat": ""},
    "version 2": {"memory.max": 8 * GIB, "memory.current": 6 * GIB,
                  "memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB // 2}\n"},
    "version 1": {"memory/memory.limit_in_bytes": 8 * GIB, "memory/memory.usage_in_bytes": 6 * GIB,
                  "memory/memory.stat": f"inactive_file 9\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}\n"},
}  # fmt: skip


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_of_containers_count(kind, tmp_path, monkeypatch):
    """8 GiB, of which 6 are in use, 1.5 of them by cached files."""
    (tmp_path / "memory").mkdir()
    for name, content in LIMITS[kind].items():
        (tmp_path / name).write_text(str(content))
    monkeypatch.setattr(memory, "_CGROUP_ROOT", tmp_path)
    machine = SimpleNamespace(total=64 * GIB, available=32 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    free, total = (32, 64) if kind == "none" else (3.5, 8)
    assert (memory.get_free_memory(), memory.get_total_memory()) == (free * GIB, total * GIB)
