"""``bench unet`` and ``pipeline``: what they write, going on where they stopped, and memory that runs out."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.tools.bench import sweep, task
from ppdiffusers_tome.tools.bench.contenders import CONTENDERS
from ppdiffusers_tome.tools.bench.own_process import in_own_process
from ppdiffusers_tome.tools.bench.plan import Plan, Setting, Variant
from ppdiffusers_tome.tools.bench.task import Task
from ppdiffusers_tome.tools.cli.commands.benchmarks import benches
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.measure import out_of_memory
from ppdiffusers_tome.tools.measure.json_lines import Writer
from ppdiffusers_tome.tools.measure.out_of_memory import EXIT_STATUS, memory_ended

pytestmark = pytest.mark.once

SMALL = ["--model", "sd15-tiny-random", "--sizes", "64", "--steps", "2"]
LIMIT = int(2.1 * 2**30)
ON = {"device": "cpu", "memory": "memory of a process that is not there"}


class Worker:
    """Stands in for the process of a task: answers at once, with seconds that were chosen, and ends when told."""

    def __init__(self, seconds: dict[str, list[float]], *, stop_after: int = 99, too_large: tuple[str, ...] = ()):
        self.seconds, self.stop_after, self.too_large = seconds, stop_after, too_large
        self.tasks: list[Task] = []

    def __call__(self, work: Callable[..., Any], task: Task) -> Iterator[dict[str, Any]]:
        self.tasks.append(task)
        yield {"on": ON}
        for variant in task.variants:
            yield {"running": variant.name}
            if variant.name in self.too_large:
                raise MemoryError
        for number in task.rounds:
            if self.stop_after == 0:
                raise KeyboardInterrupt
            self.stop_after -= 1
            yield {
                "round": number,
                "seconds": {variant.name: self.seconds[variant.name][number] for variant in task.variants},
            }
        if not task.rounds:
            yield {"peak_bytes": 2**30, "resident_peak_bytes": 2**31}


# Chosen so that medians of paired rounds differ from ratios of medians.
SECONDS = {"none": [10.0, 20.0, 30.0], "ours 0.5": [5.0, 5.0, 15.0], "free 0.5": [4.0, 5.0, 7.5]}
THREE = ["--contenders", "none", "ours", "free"]


def bench(folder: Path, *arguments: str) -> int:
    return main(["bench", "unet", *SMALL, "--output", str(folder), *arguments])


def cells(folder: Path, name: str = "unet") -> dict[str, dict[str, Any]]:
    """Results by variant, of a run with one setting."""
    return {cell["variant"]: cell for cell in json.loads((folder / f"{name}.json").read_text())["cells"]}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    stand_in = Worker(SECONDS)
    monkeypatch.setattr(sweep, "in_own_process", stand_in)
    return stand_in


@pytest.mark.sweep
def test_unet_is_measured_and_more_rounds_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--contenders", "ratio-0", "port", "ours", "ours-fast", "free"]
    assert bench(tmp_path, *chosen, "--repeats", "1") == 0
    first = (tmp_path / "unet.jsonl").read_text()
    assert bench(tmp_path, *chosen, "--repeats", "2") == 0
    assert (tmp_path / "unet.jsonl").read_text().startswith(first)
    found = cells(tmp_path)
    assert list(found) == ["none", "ratio-0", "port 0.5", "ours 0.5", "ours-fast 0.5", "free 0.5"]
    for cell in found.values():
        assert 0 < cell["seconds"]["low"] <= cell["seconds"]["median"] <= cell["seconds"]["high"]
        assert cell["speed_up"]["median"] > 0
    assert found["none"]["speed_up"] == {"median": 1, "low": 1, "high": 1}
    rounds = [json.loads(line) for line in (tmp_path / "unet.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds if "round" in line] == [0, 1]
    table = (tmp_path / "unet.md").read_text()
    assert table.splitlines()[0].removeprefix("# ") in capsys.readouterr().out
    assert all(CONTENDERS[name].meaning in table for name in ("none", *chosen[1:]))
    with Image.open(tmp_path / "unet.png") as picture:
        assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 5


def test_pipeline_is_measured(tmp_path: Path) -> None:
    small = ["--sizes", "64", "--batches", "2", "--steps", "1", "--repeats", "1"]
    arguments = [*small, "--contenders", "none", "port", "ours", "free", "--output", str(tmp_path)]
    assert main(["bench", "pipeline", *arguments]) == 0
    found = cells(tmp_path, "pipeline")
    assert list(found) == ["none", "port 0.5", "ours 0.5", "free 0.5"]
    assert all(cell["seconds"]["median"] > 0 for cell in found.values())
    assert "seconds per image" in (tmp_path / "pipeline.md").read_text()


def test_memory_is_measured_and_held_against_a_limit(tmp_path: Path) -> None:
    only = ["--contenders", "none", "--repeats", "0"]
    assert bench(tmp_path, *only, "--memory-limit", "1MiB") == 0
    cell = cells(tmp_path)["none"]
    assert cell["seconds"] is None
    if cell["resident_peak_bytes"] is None:
        pytest.skip("this system measures no resident memory")
    assert 2**20 < cell["peak_bytes"] <= cell["resident_peak_bytes"]
    assert cell["fits"] is False
    assert bench(tmp_path, *only, "--memory-limit", "1024GiB") == 0  # from what was measured
    assert cells(tmp_path)["none"] == {**cell, "fits": True}
    assert "fits 1024 GiB" in (tmp_path / "unet.md").read_text()


@pytest.mark.sweep  # memory is really used up
def test_what_does_not_fit_is_a_cell(tmp_path: Path) -> None:
    """For real: the address space is limited, so that the unmerged attention of 4096 tokens has no room."""
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT})); "
        "from ppdiffusers_tome.tools.cli.program import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "bench", "unet", *SMALL[:2], "--sizes", "512", "--steps", "1"]
    command += ["--repeats", "1", "--contenders", "ours", "--output", str(tmp_path)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr
    found = cells(tmp_path)
    assert found["none"]["out_of_memory"]
    assert found["none"]["seconds"] is None
    assert not found["ours 0.5"]["out_of_memory"]
    assert found["ours 0.5"]["seconds"]["median"] > 0
    assert found["ours 0.5"]["speed_up"] is None
    assert "| 512 | 1 | plain | out of memory | " in (tmp_path / "unet.md").read_text()
    assert "out of memory" in done.stdout


def test_speed_ups_come_from_paired_rounds(tmp_path: Path, worker: Worker) -> None:
    assert bench(tmp_path, *THREE) == 0
    found = cells(tmp_path)
    assert found["ours 0.5"]["seconds"] == {"median": 5, "low": 5, "high": 15}
    assert found["ours 0.5"]["speed_up"] == {"median": 2, "low": 2, "high": 4}
    assert found["free 0.5"]["speed_up"] == {"median": 4, "low": 2.5, "high": 4}
    assert found["ours 0.5"]["share_of_free"] == {"median": 0.8, "low": 0.5, "high": 1}
    assert found["none"]["share_of_free"] is None
    assert (
        "| 5.00 s (5.00 s to 15.00 s) | 2.00x (2.00x to 4.00x) | 80.0% (50.0% to 100.0%) |"
        in (tmp_path / "unet.md").read_text()
    )


def test_stopped_run_goes_on_where_it_was(tmp_path: Path, worker: Worker) -> None:
    worker.stop_after = 2
    assert bench(tmp_path, *THREE) == 130
    assert not (tmp_path / "unet.json").exists()
    with (tmp_path / "unet.jsonl").open("a") as file:
        file.write('{"setting": {"si')  # as a machine that lost its power leaves it
    worker.stop_after = 99
    assert bench(tmp_path, *THREE) == 0
    assert [task.rounds for task in worker.tasks] == [(0, 1, 2), (2,)]
    assert cells(tmp_path)["none"]["seconds"] == {"median": 20, "low": 10, "high": 30}
    assert bench(tmp_path, *THREE) == 0
    assert len(worker.tasks) == 2
    assert bench(tmp_path, *THREE, "--batches", "1", "3") == 0
    assert [(task.setting, task.rounds) for task in worker.tasks[2:]] == [(Setting(64, 3, "plain"), (0, 1, 2))]
    assert bench(tmp_path, *THREE, "--overwrite") == 0
    assert worker.tasks[3].rounds == (0, 1, 2)


def test_torn_line_is_told_and_its_round_run_again(
    tmp_path: Path, worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of the file too, and without the line behind it."""
    assert bench(tmp_path, *THREE) == 0
    path = tmp_path / "unet.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert b'"round": 1' in lines[3]
    lines[3] = lines[3][:30] + b"\n"
    path.write_bytes(b"".join(lines))
    capsys.readouterr()
    assert bench(tmp_path, *THREE) == 0
    assert f"warning: {path}, line 4 is incomplete, as after a killed process" in capsys.readouterr().err
    assert [task.rounds for task in worker.tasks] == [(0, 1, 2), (1,)]
    assert cells(tmp_path)["none"]["seconds"] == {"median": 20, "low": 10, "high": 30}


def test_findings_that_another_run_writes_are_refused(
    tmp_path: Path, worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, *THREE) == 0
    before = (tmp_path / "unet.jsonl").read_bytes()
    with Writer(tmp_path / "unet.jsonl"):
        assert bench(tmp_path, *THREE, "--overwrite") == 2
    assert f"another run writes to {tmp_path / 'unet.jsonl'}; wait until it has ended" in capsys.readouterr().err
    assert (tmp_path / "unet.jsonl").read_bytes() == before
    assert bench(tmp_path, *THREE, "--steps", "3") == 2  # one that is refused locks nothing
    assert bench(tmp_path, *THREE) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["unet.json", "unet.jsonl", "unet.md", "unet.png"]


def test_full_disk_is_said_in_one_line(tmp_path: Path, worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    worker.stop_after = 1
    assert bench(tmp_path, *THREE) == 130
    before = (tmp_path / "unet.jsonl").read_bytes()
    worker.stop_after = 99
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        capsys.readouterr()
        assert bench(tmp_path, *THREE) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "unet.jsonl cannot be written (File too large); make room" in capsys.readouterr().err
    assert (tmp_path / "unet.jsonl").read_bytes() == before
    assert bench(tmp_path, *THREE) == 0


def test_findings_of_another_run_are_not_mixed_in(
    tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, *THREE) == 0
    before = (tmp_path / "unet.jsonl").read_text()
    assert bench(tmp_path, *THREE, "--steps", "3") == 2
    assert "was measured with steps=2 and this run has 3" in capsys.readouterr().err
    monkeypatch.setitem(ON, "device", "gpu:0")
    assert bench(tmp_path, *THREE, "--repeats", "4") == 2
    assert "was measured with device='cpu' and this run has 'gpu:0'" in capsys.readouterr().err
    assert (tmp_path / "unet.jsonl").read_text() == before


def test_one_that_does_not_fit_is_left_out_and_the_rest_go_on(tmp_path: Path, worker: Worker) -> None:
    worker.too_large = ("none",)
    assert bench(tmp_path, *THREE, "--memory-limit", "1.5GiB") == 0
    timed = [[variant.name for variant in task.variants] for task in worker.tasks if task.rounds]
    assert timed == [["none", "ours 0.5", "free 0.5"], ["ours 0.5", "free 0.5"]]
    found = cells(tmp_path)
    assert found["none"]["out_of_memory"]
    assert found["none"]["peak_out_of_memory"]
    assert [found[name]["fits"] for name in found] == [False, False, False]
    assert found["ours 0.5"]["speed_up"] is None
    assert found["ours 0.5"]["share_of_free"]["median"] == 0.8
    assert bench(tmp_path, *THREE, "--memory-limit", "3GiB") == 0
    assert [cell["fits"] for cell in cells(tmp_path).values()] == [False, True, True]
    assert len(worker.tasks) == 5
    worker.too_large = ("none", "ours 0.5", "free 0.5")
    assert bench(tmp_path, *THREE, "--overwrite") == 0
    assert all(cell["out_of_memory"] for cell in cells(tmp_path).values())


def test_only_want_of_memory_counts_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory, "num_memory_kills", lambda: 3)
    assert memory_ended(-signal.SIGKILL, 2, "")
    assert not memory_ended(-signal.SIGKILL, 3, "")  # someone else killed it
    assert memory_ended(-signal.SIGKILL, None, "")
    assert memory_ended(EXIT_STATUS, 3, "")
    assert memory_ended(-signal.SIGABRT, 3, "terminate called after throwing 'std::bad_alloc'")
    assert not memory_ended(-signal.SIGSEGV, 3, "")
    assert not memory_ended(1, 3, "ValueError")


def test_process_that_failed_is_told_where_there_is_no_such_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a process that was killed ends with 1."""
    monkeypatch.delattr(signal, "SIGKILL")
    assert not memory_ended(1, 3, "ValueError")
    assert memory_ended(EXIT_STATUS, 3, "")


def test_fault_of_a_process_is_not_hidden() -> None:
    plan = Plan("unet", "sd15-tiny-random", "float32", 1, (), (0.5,), None, 0, None, (64,), (1,), ("plain",), 1, False)
    asked = Task(plan, plan.settings[0], (Variant("nobody"),), (0,))
    words = r"(?s)size=64, batch=1, attention='plain'.* ended with status 1.*KeyError.*nobody"
    with pytest.raises(RuntimeError, match=words):
        list(in_own_process(task.carry_out, asked))


def test_attention_that_needs_a_gpu_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import paddle

    if paddle.get_device() != "cpu":
        pytest.skip("there is a GPU")
    assert bench(tmp_path, "--attention", "xformers") == 2
    assert "--attention xformers needs a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "100"], "--sizes 100 must be a multiple of 64, so that every contender can run"),
        (["--sizes", "0"], "take 64"),
        (["--batches", "0"], "--batches 0 must be 1 or more"),
        (["--ratios", "0.8"], "below 0.75 for a 2x2 stride"),
        (["--ratios", "0"], "--ratios 0 merges nothing"),
        (["--steps", "0"], "--steps 0 must be 1 or more"),
        (["--repeats", "0"], "--repeats 0 times nothing"),
        (["--repeats", "-1", "--memory"], "--repeats -1 times nothing"),
        (["--memory-limit", "20"], "argument --memory-limit: '20' must be a size above 0 with its unit (KiB, MiB, GiB"),
        (["--memory-limit", "0GiB"], "'0GiB' must be a size above 0"),
        (["--seed", "-1"], "--seed -1 must be from 0"),
        (["--contenders", "theirs"], "invalid choice: 'theirs'"),
        (["--attention", "fast"], "invalid choice: 'fast'"),
        (["--model", "./nowhere"], "--model ./nowhere does not exist"),
        (["--size", "64"], "'--size' is not an argument of bench unet; did you mean --sizes?"),
    ],
)
def test_sweeps_refuse_bad_input(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], worker: Worker
) -> None:
    assert bench(tmp_path, *arguments) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert worker.tasks == []


def test_files_of_others_are_not_replaced(tmp_path: Path, worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "unet.md").write_text("mine")
    assert bench(tmp_path, *THREE) == 2
    assert "unet.md exists already" in capsys.readouterr().err
    (tmp_path / "unet.md").unlink()
    (tmp_path / "unet.jsonl").write_text("mine\n")
    assert bench(tmp_path, *THREE) == 2
    assert "unet.jsonl cannot be read" in capsys.readouterr().err
    assert (tmp_path / "unet.jsonl").read_text() == "mine\n"


def test_new_benchmark_is_one_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "say_hello.py").write_text(
        "HELP = EXAMPLES = 'Say hello.'\n"
        "def add_arguments(parser): parser.add_argument('--name')\n"
        "def run(args): print('hello', args.name)\n"
    )
    monkeypatch.setattr(benches, "__path__", [*benches.__path__, str(tmp_path)])
    assert main(["bench", "say-hello", "--name", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert main(["bench", "--help"]) == 0
    assert "bench say-hello [-h] [--name NAME]" in capsys.readouterr().out
    sys.modules.pop("ppdiffusers_tome.tools.cli.commands.benchmarks.say_hello")
