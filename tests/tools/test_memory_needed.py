"""The memory that a picture takes at the least: told before anything is loaded, and never more than it really takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import memory
from ppdiffusers_tome.tools.generation.memory import MemoryNeeds, check_memory, get_free_bytes
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, find_model
from ppdiffusers_tome.tools.measure import control_groups, machine

MODEL = find_model("bundled")
PLAIN = MemoryNeeds(MODEL, ToMeConfig(0.0))
GIB = 2**30


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "get_free_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(memory, "installed_version", lambda package: None)


def needed(drawing: MemoryNeeds, height: int, width: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """GiB that it says, where there are none."""
    monkeypatch.setattr(memory, "get_free_bytes", lambda: 0)
    with pytest.raises(UserError) as raised:
        check_memory(drawing, height, width)
    found = re.search(r"at least ([\d,.]+) GiB", str(raised.value))
    assert found
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize(("height", "width"), [(None, None), (512, 512), (768, None), (None, 1024)])
def test_what_fits_is_let_through(free, height, width):
    check_memory(PLAIN, height, width)


@pytest.mark.parametrize(
    ("height", "width", "prefix", "words"),
    [
        (100_000, 100_000, "--", r"--height 100000 and --width 100000: .* alone takes at .*; draw a smaller picture$"),
        (8, 80_000_000, "", r"height 8 and width 80000000: .*, and 8\.0 GiB are free; draw a smaller picture$"),
        (None, 16_000, "--", r"--width 16000: .* alone takes at least"),
        # 180 * 180 tokens, two rows, two heads: 2 * 2 * 2 * 4 * 180**4 bytes.
        (1440, 1440, "--", r".*: the attention of the UNet alone .* 31\.3 GiB .*, or give --chunked-attention$"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_the_cause_named(height, width, prefix, words, free):
    with pytest.raises(UserError, match=f"^{words}"):
        check_memory(PLAIN, height, width, prefix=prefix)


def test_settings_count(free, monkeypatch):
    whole = needed(PLAIN, 1024, 1024, monkeypatch)
    assert needed(replace(PLAIN, rows=1), 1024, 1024, monkeypatch) == pytest.approx(whole / 2, abs=0.1)
    half = replace(PLAIN, tome=ToMeConfig(0.5))
    vae = needed(replace(PLAIN, chunked_attention=True), 1024, 1024, monkeypatch)
    assert needed(half, 1024, 1024, monkeypatch) == pytest.approx(max(vae, whole / 4), abs=0.1)
    keys = replace(PLAIN, tome=ToMeConfig(0.75, method="todo"))
    assert needed(keys, 1024, 1024, monkeypatch) == pytest.approx(max(vae, whole / 4), abs=0.1)


def test_a_gpu_and_a_model_that_is_not_here_have_the_picture_counted_alone(free, monkeypatch):
    hub = replace(PLAIN, model=ModelSource("some/model", None, None))
    check_memory(hub, 8192, 8192)
    monkeypatch.setattr(memory, "installed_version", lambda package: "3.3.1" if package.endswith("-gpu") else None)
    check_memory(PLAIN, 8192, 8192)
    with pytest.raises(UserError, match=r"the picture alone takes at least 111\.8 GiB"):
        check_memory(PLAIN, 100_000, 100_000)


def test_where_the_system_tells_nothing_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_MEMORY", tmp_path / "nowhere")
    assert get_free_bytes() is None
    check_memory(PLAIN, 100_000, 100_000)


MACHINE = "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   33554432 kB\nSwapFree:        4194304 kB\n"
MOUNT_2 = "28 22 0:25 {root} {folder} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
MOUNT_1 = "36 30 0:31 {root} {folder} rw,nosuid,relatime shared:14 - cgroup cgroup rw,memory\n"
CPU_1 = "35 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:13 - cgroup cgroup rw,cpu,cpuacct\n"
STAT_2 = f"anon 1\nfile {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\nslab 7\n"
STAT_1 = f"cache 5\ninactive_file 9\nactive_file 9\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}\n"
NO_LIMIT_1 = 9223372036854771712


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A machine with 32 GiB free and 4 of swap, and control groups as files of ``/proc`` and ``/sys`` tell of them."""

    def lay_out(groups: str = "", mounts: str = "", files: dict[str, object] | None = None, root: str = "/") -> None:
        (tmp_path / "meminfo").write_text(MACHINE)
        (tmp_path / "cgroup").write_text(groups)
        (tmp_path / "mountinfo").write_text(CPU_1 + mounts.format(root=root, folder=tmp_path / "sys"))
        for name, content in (files or {}).items():
            path = tmp_path / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        monkeypatch.setattr(machine, "_MEMORY", tmp_path / "meminfo")
        monkeypatch.setattr(control_groups, "_GROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(control_groups, "_MOUNTS", tmp_path / "mountinfo")

    return lay_out


def test_what_the_system_tells(system):
    system()
    assert get_free_bytes() == 36 * GIB


@pytest.mark.parametrize(
    ("version", "groups", "root", "folder"),
    [
        (2, "0::/\n", "/", ""),  # a container with a name space of its own
        (2, "0::/user.slice/user-1000.slice/session-1.scope\n", "/", "user.slice/"),  # a limit further out counts
        (2, "0::/../other\n", "/", ""),
        (1, "11:cpuset:/\n4:memory:/docker/abc\n0::/docker/abc\n", "/docker/abc", ""),
        (1, "4:memory:/slurm/uid_1/job_7/step_0\n", "/", "slurm/uid_1/job_7/"),
        (1, "4:memory:/kubepods/burstable/pod1\n", "/", ""),  # its own folder is not shown
    ],
)
def test_limits_of_control_groups_are_kept_to(version, groups, root, folder, system):
    """8 GiB, of which 6 are taken, 1.5 of them by files that may go; swap of 1 GiB, and a quarter of that taken."""
    if version == 2:
        names = {"memory.max": 8 * GIB, "memory.current": 6 * GIB, "memory.stat": STAT_2.strip(),
                 "memory.swap.max": GIB, "memory.swap.current": GIB // 4}  # fmt: skip
        inner = {"memory.max": "max", "memory.current": GIB, "memory.swap.max": "max", "memory.swap.current": 0}
    else:
        names = {"memory.limit_in_bytes": 8 * GIB, "memory.usage_in_bytes": 6 * GIB, "memory.stat": STAT_1.strip(),
                 "memory.memsw.limit_in_bytes": 9 * GIB, "memory.memsw.usage_in_bytes": 6.25 * GIB}  # fmt: skip
        names = {name: int(value) if isinstance(value, float) else value for name, value in names.items()}
        inner = {"memory.limit_in_bytes": NO_LIMIT_1, "memory.usage_in_bytes": GIB}
    files = {folder + name: value for name, value in names.items()}
    if folder:
        own = groups.split(":")[-1].strip().lstrip("/")
        files |= {f"{own}/{name}": value for name, value in inner.items()}
    system(groups, MOUNT_2 if version == 2 else MOUNT_1, files, root)
    assert machine.free_memory() == {"MemAvailable": 3.5 * GIB, "SwapFree": 0.75 * GIB}
    assert get_free_bytes() == 4.25 * GIB
    assert machine.all_memory() == 8 * GIB


def test_groups_without_limits_leave_what_the_machine_has(system):
    system("0::/\n", MOUNT_2, {"memory.max": "max", "memory.current": GIB, "memory.stat": STAT_2})
    assert get_free_bytes() == 36 * GIB
    system("4:memory:/\n", MOUNT_1, {"memory.limit_in_bytes": NO_LIMIT_1, "memory.usage_in_bytes": GIB})
    assert get_free_bytes() == 36 * GIB
    assert machine.all_memory() == 64 * GIB


def test_a_group_that_is_full_leaves_nothing_and_garbage_is_no_limit(system):
    system("0::/\n", MOUNT_2, {"memory.max": GIB, "memory.current": 2 * GIB})
    assert machine.free_memory() == {"MemAvailable": 0, "SwapFree": 4 * GIB}
    for groups, mounts in (("what\n", MOUNT_2), ("0::/\n", "what\n"), ("0::/\n", MOUNT_2)):
        system(groups, mounts, {"memory.max": "", "memory.current": "x"})
        assert get_free_bytes() == 36 * GIB


@pytest.mark.parametrize("ratio", ["0", "0.5"])
def test_it_is_less_than_what_is_measured(ratio, tmp_path, monkeypatch):
    given = ["--height", "256", "--width", "256", "--steps", "1", "--prompt", "a photo of a cat"]
    arguments = ["compare", *given, "--ratios", "0.5", "--output", str(tmp_path)]
    assert main(arguments) == 0
    rows = json.loads((tmp_path / "compare.json").read_text())["configurations"]
    peaks = {row["configuration"]["name"]: row["peak_bytes"] for row in rows}
    measured = peaks["unmerged" if ratio == "0" else "ratio 0.5"]
    if measured is None:
        pytest.skip("not measured here")
    drawing = replace(PLAIN, tome=ToMeConfig(float(ratio)))
    vae, unet = (json.loads((Path(MODEL.arguments[0]) / part / "config.json").read_text()) for part in ("vae", "unet"))
    monkeypatch.setattr(memory, "installed_version", lambda package: None)
    parts = {what: size for size, what in memory._parts(drawing, vae, unet, 8, 256, 256)}
    assert len(parts) == 4
    assert all(0 < size < measured for size in parts.values())
