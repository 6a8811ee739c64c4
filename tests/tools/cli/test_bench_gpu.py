"""``bench gpu``: as far as a CPU allows, for real; where a GPU is needed, that it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import paddle
import pytest

from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.tools.bench.contenders import PRESETS
from ppdiffusers_tome.tools.bench.gpu import clock
from ppdiffusers_tome.tools.bench.gpu.clock import EVENTS, HOST, clock_here
from ppdiffusers_tome.tools.bench.gpu.cost import DEVICES
from ppdiffusers_tome.tools.bench.gpu.estimate import by_strength, estimated
from ppdiffusers_tome.tools.bench.gpu.measured import Finding, measure, table
from ppdiffusers_tome.tools.bench.gpu.subjects import MODELS, TINY_MODELS, load, on_cpu, plan_of
from ppdiffusers_tome.tools.bench.plan import Plan
from ppdiffusers_tome.tools.bench.summary import Result
from ppdiffusers_tome.tools.bench.task import Task, carry_out
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.measure.clock import seconds_of
from ppdiffusers_tome.tools.measure.spread import Spread
from zoo.specimen import attention_anywhere

CHECK = ["bench", "gpu", "--on-cpu-as-a-check", "--steps", "1", "--repeats", "2"]
A100 = DEVICES[0].name
NAMES = ["none", *PRESETS.values()]
needs_cpu = pytest.mark.skipif(paddle.get_device() != "cpu", reason="there is a GPU")


@pytest.mark.sweep
def test_check_on_a_cpu_goes_through_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CHECK, "--output", str(tmp_path)]) == 0
    findings = json.loads((tmp_path / "gpu.json").read_text())["findings"]
    assert {each["family"]: each["plan"]["model"] for each in findings} == TINY_MODELS
    for each in findings:
        assert [cell["contender"] for cell in each["cells"]] == NAMES
        assert all(cell["seconds"]["low"] > 0 and cell["speed_up"]["low"] > 0 for cell in each["cells"])
        assert (each["failed"], each["on"]["device"], each["on"]["clock"]) == (None, "cpu", HOST)
    page = (tmp_path / "gpu.md").read_text()
    assert page.startswith("# A check of bench gpu on a CPU: tiny models, and nothing about any GPU\n")
    assert "| sd15-tiny-random | float32 | plain | 128x128 | " in page
    assert "estimated" not in page
    assert page.splitlines()[0].removeprefix("# ") in capsys.readouterr().out
    rounds = (tmp_path / "gpu-sd15-float32-plain.jsonl").read_bytes()
    assert main([*CHECK, "--output", str(tmp_path)]) == 0  # from what was measured
    assert (tmp_path / "gpu-sd15-float32-plain.jsonl").read_bytes() == rounds


@needs_cpu
def test_without_a_gpu_it_says_so_and_how_to_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "bench gpu needs an NVIDIA GPU and paddlepaddle-gpu, and here Paddle runs on the CPU" in error
    assert "--on-cpu-as-a-check goes through the same steps" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "500"], "--sizes 500 must be a multiple of 64; take 512, 1024 or 2048"),
        (["--repeats", "0"], "--repeats 0 must be 1 or more"),
        (["--steps", "0"], "--steps 0 must be 1 or more"),
        (["--families", "flux"], "invalid choice: 'flux'"),
        (["--dtypes", "float32"], "invalid choice: 'float32'"),
        (["--families", "sd3", "--attention", "plain"], "SD3 runs with flash attention on a GPU only"),
        (["--families", "sd3", "--on-cpu-as-a-check"], "SD3 runs with flash attention on a GPU only"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "gpu", *arguments, "--output", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sweep
@needs_cpu
def test_what_cannot_run_is_told_and_the_rest_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = TINY_MODELS["sdxl"]
    plans = [("sdxl", plan_of("sdxl", tiny, "float32", name, (64,), 1, 1)) for name in ("flash", "plain")]
    flash, plain = measure(plans, tmp_path, on_cpu, overwrite=False)
    assert flash.failed is not None
    assert "--attention flash needs a GPU" in flash.failed
    assert "sdxl-float32-flash: --attention flash needs a GPU" in capsys.readouterr().err
    assert plain.failed is None
    assert [row[:4] for row in table([flash, plain], None).rows] == [("sdxl-tiny-random", "float32", "plain", "64x64")]


def test_sd3_is_measured_unmerged_and_with_every_preset() -> None:
    """Its attention is a GPU's in this ppdiffusers, so here plain attention stands in for it."""
    plan = plan_of("sd3", "sd3-tiny-random", "float32", "flash", (256,), 2, 1)
    keys: list[int] = []

    def listening(plan: Plan, setting: Any) -> Any:
        loaded = load(plan, setting)
        for site in find_blocks(loaded.model_or_pipe):
            site.block.attn.to_k.register_forward_post_hook(lambda _, inputs, output: keys.append(output.shape[1]))
        return loaded

    with attention_anywhere():
        answers = list(carry_out(Task(plan, plan.settings[0], tuple(plan.variants), (0,)), listening, seconds_of))
    assert [answer["running"] for answer in answers if "running" in answer] == 2 * NAMES
    assert list(answers[-1]["seconds"]) == NAMES
    # Of 16x16 tokens; a step of each to warm up and two that are timed, in two blocks each.
    left = {"none": 256, "preset-balanced": 256 - int(256 * 8 / 9), "preset-fast": 16, "preset-quality": 64}
    assert keys == [left[name] for steps in (1, 2) for name in NAMES for _ in range(2 * steps)]


def spread(value: float) -> Spread:
    return Spread(value, value, value)


def result(plan: Plan, number: int, seconds: float | None, speed_up: float | None) -> Result:
    variant, times = plan.variants[number], None if speed_up is None else spread(speed_up)
    taken = None if seconds is None else spread(seconds)
    return Result(plan.settings[0], variant, taken, times, None, seconds is None, None, None, False)


@pytest.mark.parametrize(("attention", "shown"), [("flash", True), ("xformers", True), ("plain", False)])
def test_what_was_measured_stands_beside_the_estimate(attention: str, shown: bool) -> None:
    plan = plan_of("sd15", MODELS["sd15"], "bfloat16", attention, (1024,), 4, 10)
    results = [result(plan, number, 0.05 / (1 + number / 10), 1 + number / 10) for number in range(4)]
    (row,) = table([Finding("sd15", plan, {}, results)], A100).rows
    assert row[:5] == ("Stable Diffusion 1.5", "bfloat16", attention, "1024x1024", "50.00")
    estimate = estimated("sd15", 1024, A100)
    assert estimate is not None
    for cell, name in zip(row[5:], by_strength(), strict=True):
        measured = 1 + (NAMES.index(PRESETS[name])) / 10
        beside = f", estimated {estimate.speed_up(name):.2f}x" if shown else ""
        assert cell == f"{measured:.2f}x ({measured:.2f}x to {measured:.2f}x){beside}"


def test_a_model_that_fits_only_with_a_preset_has_its_milliseconds() -> None:
    plan = plan_of("sd15", MODELS["sd15"], "float16", "plain", (2048,), 4, 10)
    results = [result(plan, 0, None, None), *(result(plan, number, 0.2, None) for number in (1, 2)),
               result(plan, 3, None, None)]  # fmt: skip
    (row,) = table([Finding("sd15", plan, {}, results)], A100).rows
    cells = dict(zip(["none", *(PRESETS[name] for name in by_strength())], row[4:], strict=True))
    assert cells == {
        "none": "out of memory", "preset-balanced": "200.00 ms", "preset-fast": "200.00 ms",
        "preset-quality": "out of memory",
    }  # fmt: skip


class Event:
    """Stands in for a CUDA event, of which a CPU has none: notes what happens to it."""

    def __init__(self, log: list[str], milliseconds: float) -> None:
        self._log, self._milliseconds = log, milliseconds

    def record(self) -> None:
        self._log.append("record")

    def synchronize(self) -> None:
        self._log.append("wait")

    def elapsed_time(self, other: Event) -> float:
        assert other is not self
        return self._milliseconds


def test_time_between_events_is_that_of_the_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(clock, "synchronize", lambda: log.append("all done"))

    def event(*, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(log, 12.5)

    assert clock.seconds_between_events(lambda: log.append("work"), event) == 0.0125
    assert log == ["all done", "record", "work", "record", "wait"]


def test_events_are_the_clock_where_paddle_tells_the_time_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    if paddle.get_device() == "cpu":
        assert clock_here() == (seconds_of, HOST)
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(paddle.device.cuda, "Event", Event)
    assert clock_here()[1] == EVENTS
    monkeypatch.setattr(paddle.device.cuda, "Event", object)  # as in Paddle 2.6
    assert clock_here() == (seconds_of, HOST)
