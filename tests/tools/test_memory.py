"""Memory: what is free, also in a container, and images that do not fit."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.generation import memory as needed
from ppdiffusers_tome.tools.generation.memory import check_memory
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.measure import memory

GIB = 2**30
MODEL, UNMERGED = find_model("photographs").folder, ToMeConfig(0.0)
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
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=32 * GIB))
    free, total = (32, 64) if kind == "none" else (3.5, 8)
    assert (memory.get_free_memory(), memory.get_total_memory()) == (free * GIB, total * GIB)


def test_image_that_does_not_fit_is_refused_with_its_cause(monkeypatch):
    monkeypatch.setattr(needed, "get_free_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(needed, "find_version", lambda package: None)
    with pytest.raises(UserError, match=r"^width 16000: .* of the VAE alone .* smaller image, or give --cpu-kernels$"):
        check_memory(MODEL, UNMERGED, None, 16_000)
    # 180 * 180 tokens, two rows, two heads: 2 * 2 * 2 * 4 * 180**4 bytes.
    with pytest.raises(UserError, match=r"of the UNet alone .* 31\.3 GiB .*, or give --cpu-kernels$"):
        check_memory(MODEL, UNMERGED, 1440, 1440)
    check_memory(MODEL, ToMeConfig(0.5), 1440, 1440)
    check_memory(None, UNMERGED, 8192, 8192)  # a hub's
    check_memory(MODEL, UNMERGED, 1440, 1440, cpu_kernels=True)
    with pytest.raises(UserError, match=r"16000: the VAE alone takes at least .* choose a smaller image$"):
        check_memory(MODEL, UNMERGED, 16_000, 16_000, cpu_kernels=True)
    monkeypatch.setattr(needed, "find_version", lambda package: "3.3.1")  # the rest is in the memory of a GPU
    check_memory(MODEL, UNMERGED, 8192, 8192)
