"""Memory: what is free, also in a container, and images that do not fit."""

from __future__ import annotations

import re
import resource
from types import SimpleNamespace

import psutil
import pytest

from ppdiffusers_tome import cpu
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.measure import memory
from tools.cli.conftest import PROMPT

GIB = 2**30
LIMITS = {
    "none": {"memory.max": "max", "memory.current": "x", "memory.stat": ""},
    "of a group inside": {"a/b/memory.max": 8 * GIB, "a/b/memory.current": 6 * GIB,
                          "a/b/memory.stat": f"inactive_file {GIB}\nactive_file {GIB // 2}\n"},
    "version 2": {"memory.max": 8 * GIB, "memory.current": 6 * GIB,
                  "memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB // 2}\n"},
    "version 1": {"memory/memory.limit_in_bytes": 8 * GIB, "memory/memory.usage_in_bytes": 6 * GIB,
                  "memory/memory.stat": f"inactive_file 9\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}\n"},
}  # fmt: skip


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_of_containers_count(kind, tmp_path, monkeypatch):
    """8 GiB, of which 6 are in use, 1.5 of them by cached files."""
    for name, content in {**LIMITS[kind], "own": "4:memory:/\n0::/a/b\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(content))
    monkeypatch.setattr(cpu, "_GROUPS", tmp_path)
    monkeypatch.setattr(cpu, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=32 * GIB))
    free, total = (32, 64) if kind == "none" else (3.5, 8)
    assert (memory.get_free_memory(), memory.get_total_memory()) == (free * GIB, total * GIB)


def test_an_image_that_does_not_fit_is_an_error_in_words(tmp_path, monkeypatch, capsys):
    """Linux would kill the process where the tensors do not exceed the machine, but what is free."""
    monkeypatch.setattr(memory, "get_free_memory", lambda: GIB // 2)
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=0))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    given = ["generate", "--prompt", PROMPT, "--height", "1280", "--width", "1280", "--output", str(tmp_path)]
    assert main(given) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"not enough memory \(.*\); make images smaller, or on a CPU give --compile$", error)
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
