"""What a process does to use its CPU well: each is seen at work, in a process of its own."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from environment import run_python
from ppdiffusers_tome import cpu, machine
from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError

LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")


def run(code: str, **environment: str) -> str:
    return run_python("-c", code, check=True, **environment).stdout.strip()


@LINUX
@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_is_kept_for_all_threads_or_given_back(keep: bool) -> None:
    """Of a block that is freed and asked for again, nothing is fetched from the system a second time."""
    code = f"""
import resource, threading
import numpy as np
from ppdiffusers_tome import prepare_cpu
from ppdiffusers_tome.cpu import keeps_freed_memory
prepare_cpu(keep_memory={keep})
kept = keeps_freed_memory()

def fetch():
    for number in range(6):
        if number == 3:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [np.ones(size, np.uint8) for size in (10**7, 4 * 10**7, 10**8)]
        del blocks
    fetched.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

fetched = []
thread = threading.Thread(target=fetch)
thread.start()
thread.join()
fetch()
np.ones(50_000_000)
print(kept, int(open("/proc/self/statm").read().split()[1]) * 4096, *fetched)
"""
    kept, resident, *fetched = run(code).split()
    if keep and kept == "False":
        pytest.skip("this C library keeps nothing")
    assert (int(resident) > 400_000_000) == keep
    assert [int(number) < 100 for number in fetched] == [keep] * 2


@pytest.mark.parametrize("words", ["GenuineIntel\nflags : avx avx2", "AuthenticAMD\nflags : avx"])
def test_mkl_is_left_alone_elsewhere(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE", raising=False)
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    cpu.let_mkl_use_avx2()  # no Linux
    (tmp_path / "cpuinfo").write_text(words)
    cpu.let_mkl_use_avx2()
    assert "MKL_DEBUG_CPU_TYPE" not in os.environ


def test_cores_are_those_that_this_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    assert 1 <= machine.count_usable_cores() <= (os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        assert machine.count_usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS and Windows
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert machine.count_usable_cores() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.count_usable_cores() == 1


VERSION_1 = "5:memory:/other\n4:cpu,cpuacct:/docker/1\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "300000 100000\n"}, 3),
        ("0::/hosts/path\n", {"cpu.max": "200000 100000\n"}, 2),
        (VERSION_1, {"cpu/docker/1/cpu.cfs_quota_us": "150000", "cpu/docker/1/cpu.cfs_period_us": "50000\n"}, 3),
        (VERSION_1, {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        (VERSION_1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        (VERSION_1, {"cpu/other/cpu.cfs_quota_us": "100000\n", "cpu/other/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)
def test_cores_are_at_most_the_quota_of_a_container(
    groups: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.count_usable_cores() == cores


PREPARE = """
import ctypes, json, os, pathlib, sys
{before}
from ppdiffusers_tome import prepare_cpu
from ppdiffusers_tome.cpu import keeps_freed_memory
found = dict(threads=prepare_cpu({arguments}), variable=os.environ["OMP_NUM_THREADS"], keeps=keeps_freed_memory(),
             mkl_variable=os.environ.get("MKL_DEBUG_CPU_TYPE"), has_paddle="paddle" in sys.modules)
import paddle
def call(library, function, *given):
    path = pathlib.Path(paddle.__file__).parent / "libs" / library
    return getattr(ctypes.CDLL(str(path)), function)(*given) if path.exists() else None
found["milliseconds"] = call("libiomp5.so", "kmp_get_blocktime")
found["mkl"] = call("libmklml_intel.so", "mkl_serv_get_cpu_type", 1)
print(json.dumps(found))
"""


def prepare(arguments: str = "", before: str = "", **environment: str) -> dict[str, Any]:
    return json.loads(run(PREPARE.format(arguments=arguments, before=before), **environment))


@LINUX
def test_one_call_prepares_a_process_before_and_after_paddle_is_imported() -> None:
    cores, processor = machine.count_usable_cores(), machine._CPU_INFO.read_text()
    first = prepare()
    later = prepare(before="import paddle; paddle.ones([64, 64]) @ paddle.ones([64, 64])")
    asked = prepare("3, keep_memory=False", MKL_DEBUG_CPU_TYPE="4", KMP_BLOCKTIME="50")
    assert (first["threads"], first["variable"], first["has_paddle"]) == (cores, str(cores), False)
    assert (later["threads"], later["has_paddle"]) == (cores, True)
    assert (asked["threads"], asked["keeps"]) == (3, False)
    for before in ("", "import paddle"):  # a number that the user asked for stays
        code = f"{before}\nfrom ppdiffusers_tome import prepare_cpu\nprint(prepare_cpu())"
        assert run(code, OMP_NUM_THREADS="1") == "1"
    again = "from ppdiffusers_tome import prepare_cpu\nprepare_cpu(1)\nimport paddle\nprint(prepare_cpu())"
    assert run(again, OMP_NUM_THREADS="") == "1"  # and so does one that a program set
    # Threads sleep after an operator unless told otherwise; another OpenMP tells nothing.
    assert [each["milliseconds"] for each in (first, later, asked)] in ([1, 1, 50], [None] * 3)
    on_amd = "AuthenticAMD" in processor and " avx2" in processor
    assert [first["mkl_variable"], asked["mkl_variable"]] == ["5" if on_amd else None, "4"]
    assert not on_amd or [first["mkl"], asked["mkl"]] == [5, 4]


def test_threads_that_are_no_number_change_nothing() -> None:
    before = os.environ.get("OMP_NUM_THREADS")
    with pytest.raises(ToMeValueError, match="threads=0 must be a whole number, 1 or more"):
        cpu.prepare_cpu(0)
    for threads in ("2", 1.5, True):
        with pytest.raises(ToMeTypeError, match=r"threads=.* must be a whole number, 1 or more, or None"):
            cpu.prepare_cpu(threads)
    assert os.environ.get("OMP_NUM_THREADS") == before
