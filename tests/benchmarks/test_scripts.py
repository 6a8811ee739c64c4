"""The scripts that measure for our pages: small runs, and pages that show what is kept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import paddle
import pytest
from PIL import Image

import tiny
from benchmarks import attach, few_steps, fidelity, gpu_presets, growth, lora_training, overhead, results_page, windows
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.tools.compare.configurations import REFERENCE, Configuration
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline

pytestmark = pytest.mark.once

SMALL = ["--batch", "1", "--grid-height", "16", "--grid-width", "12", "--channels", "64", "--repeats", "2"]
SMALL += ["--tile", "8", "--blocks", "2", "--reuse-steps", "2"]
OURS_AND_PORT = {"ours", "ours, tile and reuse", "port"}


@pytest.mark.sweep
def test_overhead_measures_every_stage_beside_the_port(tmp_path: Path) -> None:
    overhead.main([*SMALL, "--output", str(tmp_path)])
    found = json.loads((tmp_path / "overhead.json").read_text())
    assert set(found["milliseconds"]) == OURS_AND_PORT == set(found["peak_bytes"])
    for stages in found["milliseconds"].values():
        assert set(stages) == {"match", "merge", "unmerge", "merge + unmerge", "all", "a step of all blocks"}
        assert all(0 < spread["low"] <= spread["median"] <= spread["high"] for spread in stages.values())
    input_bytes = 16 * 12 * 64 * 4
    for peak in found["peak_bytes"].values():
        assert 1.5 * input_bytes <= peak["held"]  # the results alone: half as many tokens, and all tokens
        assert 0 <= peak["working"] <= peak["held"]
    assert found["peak_bytes"]["port"]["working"] > found["peak_bytes"]["ours"]["working"]
    assert "port / ours" in (tmp_path / "overhead.md").read_text()
    with pytest.raises(SystemExit):  # at once, not after minutes
        overhead.main([*SMALL, "--output", str(tmp_path)])


@pytest.mark.sweep  # two grids, three processes each
def test_growth_measures_every_grid(tmp_path: Path) -> None:
    growth.main(["--sides", "24", "16", "--batch", "1", "--channels", "8", "--tile", "8", "--repeats", "1",
                 "--output", str(tmp_path)])  # fmt: skip
    rows = json.loads((tmp_path / "growth.json").read_text())["rows"]
    assert [row["side"] for row in rows] == [16, 24]
    assert all(set(row["match"]) == set(row["total"]) == OURS_AND_PORT for row in rows)
    assert (tmp_path / "growth.png").is_file()


def test_the_table_of_few_steps_is_that_of_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise run: PYTHONPATH=tests python -m benchmarks.few_steps table"""
    monkeypatch.chdir(tiny.ROOT)
    assert (few_steps.FOLDER / "settings.csv").read_text(encoding="utf-8") == few_steps.make_table()


def test_attach_times_both_functions(capsys: pytest.CaptureFixture[str]) -> None:
    attach.main(["--model", "sd15-tiny-random", "--repeats", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sd15-tiny-random, 10 blocks; device: ")
    assert [line.split(":")[0] for line in lines[1:]] == ["apply_tome", "remove_tome"]


def test_windows_fold_into_the_batch_and_back() -> None:
    tokens = paddle.arange(2 * 16 * 3).reshape([2, 16, 3])
    folded = windows.fold(tokens, 2, 0)
    assert folded[1, :, 0].tolist() == [6, 9, 18, 21]  # the window at the top right of the first image
    moved = windows.fold(tokens, 2, 1)
    assert moved[3, :, 0].tolist() == [45, 36, 9, 0]  # it wraps around: a token of every corner
    assert paddle.equal_all(windows.unfold(folded, 2, 0), tokens)
    assert paddle.equal_all(windows.unfold(moved, 2, 1), tokens)


def test_windows_times_layers(capsys: pytest.CaptureFixture[str]) -> None:
    windows.main(["layers", "--sides", "16", "--channels", "8", "--heads", "2", "--repeats", "1"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows if row][:3] == ["whole", "tome 0.5", "todo, 1 key in 4"]


@pytest.mark.parametrize(
    "configuration", [REFERENCE, fidelity.port(0.5), Configuration("merged", ToMeConfig())], ids=lambda each: each.name
)
def test_the_clock_of_blocks_covers_all_their_hooks(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, now = tiny.pipeline(), [0]
    (block, *_) = find_blocks(pipe.unet)

    def pause(*_: Any) -> None:
        now[0] += 1

    block.layer.register_forward_pre_hook(pause)
    configuration.apply(LoadedPipeline(pipe, settings=None))
    block.layer.register_forward_post_hook(pause)
    pipe.unet.conv_out.register_forward_pre_hook(pause)  # of another layer
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])  # time passes in the hooks alone
    hooks = [list(layer._forward_pre_hooks) for layer in pipe.unet.sublayers()]
    with fidelity.time_blocks(pipe) as seconds:
        tiny.run_unet(pipe.unet)
    assert seconds[block.level] == 2
    assert [list(layer._forward_pre_hooks) for layer in pipe.unet.sublayers()] == hooks


@pytest.mark.sweep
def test_fidelity_evaluates_suites_and_times_the_blocks_that_merge(tmp_path: Path) -> None:
    (tmp_path / "suite.jsonl").write_text(
        '{"name": "port half", "contender": "port", "ratio": 0.5}\n\n'
        '{"name": "tiles", "family": "in tiles", "ratio": 0.5, "tile": 4, "max_downsample": 2}\n'
    )
    small = ["--height", "64", "--width", "64", "--steps", "1", "--prompt", "a photo of a cat"]
    suite = ["--suite", str(tmp_path / "suite.jsonl"), "--port-ratios", "0.3"]
    fidelity.main([*small, *suite, "--output", str(tmp_path)])
    found = json.loads((tmp_path / "compare.json").read_text())
    assert found["levels"] == [1, 2]
    rows = {row["configuration"]["name"]: row for row in found["configurations"]}
    assert list(rows) == ["unmerged", "port 0.3", "port half", "tiles"]
    assert rows["port 0.3"]["configuration"]["contender"] == "port"
    assert rows["port 0.3"]["psnr_db"]["median"] != rows["port half"]["psnr_db"]["median"]
    for row in rows.values():
        assert row["seconds"]["median"] > row["block_seconds"]["median"] > 0
    assert rows["unmerged"]["block_speedup"]["median"] == 1


@pytest.mark.parametrize(
    ("script", "page"),
    [(results_page, "measured/performance/README.md"), (gpu_presets, "measured/gpu/README.md")],
    ids=["results", "gpu"],
)
def test_pages_show_what_is_kept(script: object, page: str) -> None:
    docs = tiny.ROOT / "docs"
    text = (docs / page).read_text(encoding="utf-8").split(script.BEGIN)[1].split(script.END)[0].strip()
    if script is results_page:
        assert text == results_page.make_page(results_page.read_machines(docs / "measured"))
    else:
        assert text == gpu_presets.page()


@pytest.mark.sweep
def test_trainings_begin_equal_and_differ_where_they_merge(tmp_path: Path) -> None:
    """The last step of the second one is whole."""
    Image.new("RGB", (128, 64)).save(tmp_path / "photo.png")
    lora_training.main(["--size", "64", "--steps", "2", "--merged-part", "0.5", "--crops", "1",
                        "--images", str(tmp_path), "--output", str(tmp_path)])  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["step"]) == {"whole", "merged"}
    assert all(value > 0 for measures in results["step"].values() for value in measures.values())
    losses = {name: values if name == "before" else values["2"] for name, values in results["losses"].items()}
    assert len({tuple(values) for values in losses.values()}) == len(losses) == 4
