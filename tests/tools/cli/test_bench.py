"""``bench unet``, ``pipeline``, ``results`` and ``gpu``: what variants do, what is measured, and how a run resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from PIL import Image

import tiny
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.tools.bench import runner
from ppdiffusers_tome.tools.bench.child_process import iterate_in_child
from ppdiffusers_tome.tools.bench.gpu_estimate import DEVICES, SIZES, TITLES, closest_device, load_estimates
from ppdiffusers_tome.tools.bench.random_models import random_model
from ppdiffusers_tome.tools.bench.summary import make_table, summarize
from ppdiffusers_tome.tools.bench.variants import PRESETS, VARIANTS, label_variants, variant_applied
from ppdiffusers_tome.tools.bench.workloads import Case, load_workload
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.stats import Spread

TOKENS = 16 * 16
SMALL = ["--model", "sd15-tiny-random", "--sizes", "64", "--steps", "2"]
THREE = ["--variants", "none", "ours", "free"]
LABELS = label_variants(list(VARIANTS), [0.5])
UNMERGED = ("none", "ratio-0", "removed")
# Keys of self-attention at the two finest levels; a pool is of whole cells of four.
KEYS = {
    **dict.fromkeys(LABELS, (TOKENS // 2, TOKENS // 4)),
    **dict.fromkeys(UNMERGED, (TOKENS, TOKENS // 4)),
    "ours-pool 0.5": (TOKENS - 3 * round(64 * (TOKENS // 2) / (TOKENS - 64)), TOKENS // 4),
    "preset-balanced": (TOKENS - int(TOKENS * 8 / 9), TOKENS // 4),
    "preset-fast": (TOKENS // 16, TOKENS // 64),
    "preset-quality": (TOKENS // 4, TOKENS // 4),
}


def bench(folder: Path, *arguments: str) -> int:
    return main(["bench", "unet", *SMALL, "--output", str(folder), *arguments])


def read_results(folder: Path, name: str = "unet") -> dict[str, dict[str, Any]]:
    """Results by variant, of a run with one case."""
    return {row["variant"]: row for row in json.loads((folder / f"{name}.json").read_text())["results"]}


def run(unet: Any) -> np.ndarray:
    with paddle.no_grad():
        return unet(tiny.latent(2, 16, 16), 500, tiny.array((2, 7, 32), seed=2)).sample.numpy()


@pytest.fixture(scope="module")
def unet() -> Any:
    return random_model("sd15-tiny-random")


@pytest.mark.parametrize("label", LABELS)
def test_attention_sees_a_variants_tokens_and_nothing_is_left_behind(label: str, unet: Any) -> None:
    plain, before, keys = run(unet), tiny.snapshot(unet), {}
    hooks = [
        block.block.attn1.to_k.register_forward_post_hook(
            lambda layer, inputs, output, level=block.level: keys.update({level: output.shape[1]})
        )
        for block in find_blocks(unet)
    ]
    with variant_applied(unet, label):
        output = run(unet)
    for hook in hooks:
        hook.remove()
    assert (keys[1], keys[2]) == KEYS[label]
    assert np.array_equal(output, plain) == (label in UNMERGED)
    assert np.isfinite(output).all()
    assert tiny.snapshot(unet) == before
    np.testing.assert_array_equal(run(unet), plain)


def test_every_run_has_the_same_inputs() -> None:
    loaded = load_workload(Case("unet", "sd15-tiny-random", "float32", "chunked", 128, 2, steps=4))
    assert {type(block.block.attn1.processor).__name__ for block in find_blocks(loaded.model_or_pipe)} == {
        "ChunkedAttnProcessor"
    }
    inputs: list[list[np.ndarray]] = []
    loaded.model_or_pipe.register_forward_pre_hook(lambda layer, values: inputs.append([x.numpy() for x in values]))
    loaded.run(4)
    loaded.run(4)
    assert [int(timestep) for _, timestep in inputs[:4]] == [999, 749, 499, 249]
    for first, second in zip(inputs[:4], inputs[4:], strict=True):
        assert all(map(np.array_equal, first, second))


def test_random_weights_are_the_same_every_time(unet: Any) -> None:
    assert tiny.snapshot(random_model("sd15-tiny-random")) is not None
    np.testing.assert_array_equal(run(random_model("sd15-tiny-random")), run(unet))
    assert float(paddle.nn.Linear(4, 4).weight.abs().sum()) > 0  # Paddle's initialiser is back


@pytest.mark.once
def test_unet_is_measured_and_more_rounds_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*THREE, "--memory-limit", "1024GiB"]
    assert bench(tmp_path, *arguments, "--repeats", "1") == 0
    first = (tmp_path / "unet.jsonl").read_text()
    assert bench(tmp_path, *arguments, "--repeats", "2") == 0
    assert (tmp_path / "unet.jsonl").read_text().startswith(first)
    assert (tmp_path / "unet.jsonl").read_text().count("\n") == first.count("\n") + 1  # a round
    found = read_results(tmp_path)
    assert list(found) == ["none", "ours 0.5", "free 0.5"]
    for row in found.values():
        assert row["rounds"] == 2
        assert 0 < row["seconds"]["low"] <= row["seconds"]["median"] <= row["seconds"]["high"]
        assert row["speed_up"]["median"] > 0
        assert row["peak_bytes"] > 2**20
    page = (tmp_path / "unet.md").read_text()
    assert "fits 1024 GiB" in page
    assert page.splitlines()[0].removeprefix("# ") in capsys.readouterr().out
    with Image.open(tmp_path / "unet.png") as plot:
        assert len(plot.getcolors(10**6)) > 10


@pytest.mark.once
def test_pipeline_is_measured(tmp_path: Path) -> None:
    small = ["--sizes", "64", "--batches", "2", "--steps", "1", "--repeats", "1", "--variants", "port"]
    assert main(["bench", "pipeline", *small, "--output", str(tmp_path)]) == 0
    assert list(read_results(tmp_path, "pipeline")) == ["none", "port 0.5"]


@pytest.mark.once
def test_results_measures_each_size_as_often_as_asked(tmp_path: Path) -> None:
    small = ["--model", "sd15-tiny-random", "--sizes", "128", "64", "--repeats", "2", "1", "--variants", "none"]
    assert main(["bench", "results", *small, "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [(row["case"]["size"], row["rounds"], row["case"]["attention"]) for row in rows] == [
        (128, 2, "chunked"), (64, 1, "chunked"),
    ]  # fmt: skip


@pytest.mark.sweep  # memory is really used up
def test_variant_that_does_not_fit_is_dropped(tmp_path: Path) -> None:
    """The address space is limited, so that the unmerged attention of 4096 tokens has no room."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30)); "
        "from ppdiffusers_tome.tools.cli.program import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "bench", "unet", *SMALL[:2], "--sizes", "512", "--batches", "3"]
    command += ["--steps", "1", "--repeats", "1", "--variants", "ours", "--output", str(tmp_path)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr
    found = read_results(tmp_path)
    assert (found["none"]["out_of_memory"], found["none"]["seconds"]) == (True, None)
    assert found["ours 0.5"]["seconds"]["median"] > 0
    assert "| none | out of memory | - |" in (tmp_path / "unet.md").read_text()


def test_speed_ups_come_from_rounds_in_which_both_ran(tmp_path: Path) -> None:
    case = Case("unet", "sd15-tiny-random", "float32", "plain", 64, 1, steps=1)
    rounds = [{"none": 10.0, "ours 0.5": 5.0, "free 0.5": 4.0}, {"none": 20.0, "ours 0.5": 5.0, "free 0.5": 5.0},
              {"none": 30.0, "ours 0.5": 15.0, "free 0.5": 7.5}, {"ours 0.5": 90.0, "free 0.5": 90.0}]  # fmt: skip
    with Ledger(tmp_path / "unet.jsonl", {}) as ledger:
        for number, seconds in enumerate(rounds):
            ledger.add(case.key("round", number), seconds)
        ledger.add(case.key("too large", "port 0.5"), True)
        for variant, peaks in {"none": 2**31, "ours 0.5": 2**30, "port 0.5": None}.items():
            both = {"peak_bytes": peaks, "resident_peak_bytes": peaks}
            ledger.add(case.key("memory", variant), peaks and both)
        results = summarize(case, 4, ["none", "ours 0.5", "free 0.5", "port 0.5"], ledger)
    none, ours, _, port = results
    assert ours.speed_up == Spread(2, 2, 4)
    assert ours.share_of_free == Spread(0.9, 0.5, 1)
    assert (none.share_of_free, port.seconds, port.out_of_memory, port.peak_out_of_memory) == (None, None, True, True)
    rows = [row[-1] for row in make_table(results, memory_limit=3 * 2**29).rows]
    assert rows == ["no", "yes", "-", "no"]


def test_fault_of_a_child_is_shown() -> None:
    case = Case("unet", "sd15-tiny-random", "float32", "plain", 64, 1, steps=1)
    with pytest.raises(RuntimeError, match=r"(?s)size=64.* ended with status 1.*KeyError.*nobody"):
        list(iterate_in_child(runner.measure_rounds, case, ["nobody"], [0]))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--sizes", "100"], "--sizes 100 must be a multiple of 64; take 128"),
        (["--ratios", "0.8"], "below 0.75 for a 2x2 stride"),
        (["--ratios", "0"], "--ratios 0 merges nothing"),
        (["--repeats", "0"], "--repeats 0 must be 1 or more"),
        (["--memory-limit", "20"], "--memory-limit 20 must be a size above 0 with its unit"),
        (["--variants", "theirs"], "invalid choice: 'theirs'"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, *arguments) == 2
    assert part in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(paddle.get_device() != "cpu", reason="there is a GPU")
def test_what_needs_a_gpu_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path, "--attention", "xformers") == 2
    assert "--attention xformers needs a GPU" in capsys.readouterr().err
    assert main(["bench", "gpu", "--output", str(tmp_path)]) == 2
    assert "--on-cpu-as-a-check goes through the same steps" in capsys.readouterr().err


@pytest.mark.once
def test_gpu_check_runs_on_a_cpu(tmp_path: Path) -> None:
    arguments = ["--on-cpu-as-a-check", "--families", "sd15", "--steps", "1", "--repeats", "1"]
    assert main(["bench", "gpu", *arguments, "--output", str(tmp_path)]) == 0
    assert list(read_results(tmp_path, "gpu")) == ["none", *PRESETS.values()]
    assert "| sd15-tiny-random | float32 | plain | 128x128 | " in (tmp_path / "gpu.md").read_text()


def test_estimate_has_every_family_size_device_and_preset() -> None:
    estimates = load_estimates()
    assert set(estimates) == {(name, size, device) for name in TITLES for size in SIZES for device in DEVICES}
    assert all(set(each.presets) == set(PRESETS) for each in estimates.values())
    assert closest_device("NVIDIA H200") == "H200"
    assert closest_device("NVIDIA GeForce RTX 4090") == "A100 80GB SXM"
