"""What a process does to use its CPU well: each is seen at work, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ppdiffusers_tome import cpu
from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError

LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
RESIDENT = "int(open('/proc/self/statm').read().split()[1]) * 4096"


def run(code: str, **environment: str) -> str:
    """What a fresh Python prints; without the settings that this one may have inherited."""
    inherited = {name: value for name, value in os.environ.items() if name != "MKL_DEBUG_CPU_TYPE"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**inherited, **environment}
    )
    return done.stdout.strip()


@LINUX
@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_is_kept_or_given_back(keep: bool) -> None:
    code = f"""
import numpy as np
from ppdiffusers_tome import keep_freed_memory
from ppdiffusers_tome.cpu import keeps_freed_memory
kept = {keep} and keep_freed_memory()
assert kept == keeps_freed_memory()
np.ones(50_000_000)
print(kept, {RESIDENT})
"""
    kept, resident = run(code).split()
    if keep and kept == "False":
        pytest.skip("this C library keeps nothing")
    assert (int(resident) > 400_000_000) == keep


@LINUX
def test_freed_memory_is_kept_for_threads_too() -> None:
    """Of a block that is freed and asked for again, nothing is fetched from the system a second time."""
    code = """
import resource, threading
import numpy as np
from ppdiffusers_tome import keep_freed_memory
kept = keep_freed_memory()

def fetched():
    def fill():
        blocks = [np.ones(size, np.uint8) for size in (10**7, 4 * 10**7, 10**8)]
    for _ in range(3):
        fill()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        fill()
    print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=fetched)
thread.start()
thread.join()
"""
    kept, fetched = run(code).split()
    if kept == "False":
        pytest.skip("this C library keeps nothing")
    assert int(fetched) < 100


@LINUX
@pytest.mark.parametrize("variables", [{}, {"MKL_DEBUG_CPU_TYPE": "4"}])
def test_mkl_takes_the_path_for_avx2_on_amd_unless_told_otherwise(variables: dict[str, str]) -> None:
    code = """
import ctypes, pathlib
from ppdiffusers_tome import let_mkl_use_avx2
done = let_mkl_use_avx2()
import paddle
(library,) = pathlib.Path(paddle.__file__).parent.glob("libs/libmklml_intel.so")
print(done, ctypes.CDLL(str(library)).mkl_serv_get_cpu_type(1))
"""
    done, path = run(code, **variables).split()
    processor = cpu._CPU_INFO.read_text()
    on_amd = "AuthenticAMD" in processor and " avx2" in processor
    assert done == str(on_amd and not variables)
    if on_amd:
        assert path == variables.get("MKL_DEBUG_CPU_TYPE", "5")


@pytest.mark.parametrize("words", ["GenuineIntel\nflags : avx avx2", "AuthenticAMD\nflags : avx"])
def test_mkl_is_left_alone_elsewhere(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE", raising=False)
    monkeypatch.setattr(cpu, "_CPU_INFO", tmp_path / "cpuinfo")
    assert not cpu.let_mkl_use_avx2()  # no Linux
    (tmp_path / "cpuinfo").write_text(words)
    assert not cpu.let_mkl_use_avx2()
    assert "MKL_DEBUG_CPU_TYPE" not in os.environ


def test_cores_are_those_that_this_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_GROUPS", tmp_path)
    assert 1 <= cpu.count_usable_cores() <= (os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        assert cpu.count_usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS and Windows
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert cpu.count_usable_cores() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpu.count_usable_cores() == 1


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
    monkeypatch.setattr(cpu, "_GROUPS", tmp_path)
    monkeypatch.setattr(cpu, "_OWN_GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu.count_usable_cores() == cores


@LINUX
def test_threads_sleep_after_an_operator_unless_told_otherwise() -> None:
    code = """
from ppdiffusers_tome import prepare_cpu
prepare_cpu()
import ctypes, os, paddle
openmp = os.path.join(os.path.dirname(paddle.__file__), "libs", "libiomp5.so")
print(ctypes.CDLL(openmp).kmp_get_blocktime() if os.path.exists(openmp) else "")
"""
    milliseconds = run(code, KMP_BLOCKTIME="50")
    if not milliseconds:
        pytest.skip("this Paddle has another OpenMP")
    assert milliseconds == "50"
    for before in ("", "import paddle; paddle.ones([64, 64]) @ paddle.ones([64, 64])"):
        assert run(f"import os; os.environ.pop('KMP_BLOCKTIME')\n{before}\n{code}", KMP_BLOCKTIME="") == "1"


def test_one_call_prepares_a_process_before_and_after_paddle_is_imported() -> None:
    code = """
import os, sys
{before}
from ppdiffusers_tome import prepare_cpu
from ppdiffusers_tome.cpu import keeps_freed_memory
print(prepare_cpu({given}), os.environ["OMP_NUM_THREADS"], keeps_freed_memory(), "paddle" in sys.modules)
"""
    cores = cpu.count_usable_cores()
    environment = {"OMP_NUM_THREADS": ""}
    assert run(code.format(before="", given=""), **environment).split()[:2] == [str(cores)] * 2
    assert run(code.format(before="import paddle", given=""), **environment).split()[::3] == [str(cores), "True"]
    assert run(code.format(before="", given="3, keep_memory=False"), **environment).split()[::2] == ["3", "False"]
    for before in ("", "import paddle"):  # a number that the user asked for stays
        assert run(code.format(before=before, given=""), OMP_NUM_THREADS="1").split()[0] == "1"
    again = "prepare_cpu(1); import paddle"  # and so does one that a program set
    assert run(code.format(before=f"from ppdiffusers_tome import prepare_cpu; {again}", given="")).split()[0] == "1"
    before = os.environ.get("OMP_NUM_THREADS")
    with pytest.raises(ToMeValueError, match="threads=0 must be a whole number, 1 or more"):
        cpu.prepare_cpu(0)
    for threads in ("2", 1.5, True):
        with pytest.raises(ToMeTypeError, match=r"threads=.* must be a whole number, 1 or more, or None"):
            cpu.prepare_cpu(threads)
    assert os.environ.get("OMP_NUM_THREADS") == before
