"""``compare``: its files, that a stopped run resumes, and that its columns differ in the settings alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome.compilation.model import CompiledModel
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.compare import run
from ppdiffusers_tome.tools.generation import sampling
from ppdiffusers_tome.tools.generation.edges import load_edges
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.images import read_settings, write_image
from tools.cli.conftest import PROMPT, ROCKET, SMALL, heard, pixels_of

FILES = ["compare.json", "compare.jsonl", "compare.md", "compare.png", "images"]
TWO = ["--prompt", PROMPT, "--prompt", ROCKET]
BOTH = ["--ratios", "0.5", "--configs", "quality"]


def compare(folder: Path, *arguments: str) -> int:
    return main(["compare", *SMALL, "--output", str(folder), *arguments])


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results by the name of the configuration."""
    content = json.loads((folder / "compare.json").read_text())
    return {row["configuration"]["name"]: row for row in content["configurations"]}


def read_similarity(folder: Path) -> dict[tuple[str, str, int], tuple[float | None, float | None]]:
    return {
        (name, sample["prompt"], sample["seed"]): (sample["psnr_db"], sample["ssim"])
        for name, row in read_rows(folder).items()
        for sample in row["samples"]
    }


def read_keys(folder: Path) -> list[list[Any]]:
    """Return prompt and seed of every measured case, in the order of the ledger."""
    _, *lines = map(json.loads, (folder / "compare.jsonl").read_text().splitlines())
    return [line["key"] for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison of two prompts that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert compare(folder, *TWO, *BOTH) == 0
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_sheet_tables_and_images_are_written(tmp_path, capsys, generate):
    folder = tmp_path / "compare"
    arguments = ["--ratios", "0.5", "0.7", "--configs", "balanced", "--steps", "2", "--fewer-steps", "1"]
    assert compare(folder, *arguments, *TWO, "--seeds", "5", "6") == 0
    captured = capsys.readouterr()
    names = ("unmerged", "ratio 0.5", "ratio 0.7", "balanced", "1 step")
    expected = [f"{prompt}, {name}" for prompt in (PROMPT, ROCKET) for _ in range(2) for name in names]
    assert [line.split(":")[0] for line in heard(captured.err)] == expected
    for told in (captured.out, (folder / "compare.md").read_text()):
        assert "photographs model, 64x64 pixels, 2 steps," in told
    assert sorted(path.name for path in folder.iterdir()) == FILES
    rows = read_rows(folder)
    assert list(rows) == list(names)
    cases = [(prompt, seed) for prompt in (PROMPT, ROCKET) for seed in (5, 6)]
    for name, row in rows.items():
        assert [(sample["prompt"], sample["seed"]) for sample in row["samples"]] == cases
        assert (row["psnr_db"] is None) == (name == "unmerged")
        assert f"| {name} |" in (folder / "compare.md").read_text()
        assert any(line.strip().startswith(name) for line in captured.out.splitlines())
    assert rows["unmerged"]["speed_up"] == {"median": 1, "low": 1, "high": 1, "interval": None}
    assert 10 < rows["ratio 0.5"]["psnr_db"]["median"] < 60
    assert read_settings(folder / "compare.png")["run"] == json.loads((folder / "compare.json").read_text())["run"]
    for ratio, kept in (("0", "unmerged-*"), ("0.5", "ratio-0-5-*")):
        generated = generate("--ratio", ratio, "--steps", "2", "--seed", "5", folder=ratio)
        (image,) = folder.glob(f"images/{kept}/a-photo-of-a-cat-*-seed-5.png")
        assert (pixels_of(image) == pixels_of(generated[0])).all()


def test_a_controlnet_is_guided_by_the_edges_of_a_photo(tmp_path, photo):
    assert compare(tmp_path, "--image", str(photo), "--prompt", PROMPT, "--ratios", "0.5") == 0
    assert "guidance 1.5, float32, ControlNet controlnet\n" in (tmp_path / "compare.md").read_text()
    content = json.loads((tmp_path / "compare.json").read_text())
    assert content["run"]["controlnet"]["photo"] == "photo.png"
    sheet = pixels_of(tmp_path / "compare.png")
    assert sheet.shape[1] == 2 * 28 + 3 * 256 + 2 * 16
    column = sheet[:, 28 : 28 + 256]
    shown = column[(column == 0).all(-1).mean(1) > 0.1]
    edges = load_edges(photo, 64, 64)
    assert np.corrcoef(shown.ravel(), np.asarray(edges.resize((256, 256))).ravel())[0, 1] > 0.9


def test_a_stopped_run_resumes_and_more_prompts_and_seeds_are_added(whole, tmp_path, capsys, monkeypatch):
    generate_image, left = sampling.generate_image, [None] * 7  # three warm-ups, and four images of two prompts

    def stop(*given: Any, **settings: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return generate_image(*given, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(sampling, "generate_image", stop)
        assert compare(tmp_path, *TWO, *BOTH) == 130
    assert read_keys(tmp_path) == [[PROMPT, 0], [ROCKET, 0]]
    assert not (tmp_path / "compare.json").exists()
    assert capsys.readouterr().out == f"kept: 4 images of 6 in {tmp_path}; the same command goes on\n"
    assert compare(tmp_path, *TWO, *BOTH) == 0
    captured = capsys.readouterr()
    assert f"kept: 4 images of {tmp_path}; --overwrite generates all again\n" in captured.out
    said = [line.split(":")[0] for line in heard(captured.err)]
    assert said == [f"{ROCKET}, {name}" for name in ("ratio 0.5", "quality")]
    assert read_similarity(tmp_path) == read_similarity(whole)
    assert compare(tmp_path, "--prompt", PROMPT, *BOTH, "--seeds", "0", "3") == 0
    assert read_keys(tmp_path) == [[PROMPT, 0], [ROCKET, 0], [PROMPT, 3]]
    before, after = read_similarity(whole), read_similarity(tmp_path)
    assert after["ratio 0.5", PROMPT, 0] == before["ratio 0.5", PROMPT, 0] != after["ratio 0.5", PROMPT, 3]


@pytest.mark.parametrize(
    ("gone", "drawn"),
    [
        ("", ("unmerged", "ratio 0.5", "quality")),
        pytest.param("unmerged-*", ("unmerged", "ratio 0.5", "quality"), marks=pytest.mark.sweep),
        pytest.param("quality-*", ("quality",), marks=pytest.mark.sweep),
    ],
)  # fmt: skip
def test_images_that_are_gone_are_drawn_again(whole, copy, gone, drawn, capsys):
    for path in [copy / "images"] if not gone else copy.glob(f"images/{gone}"):
        shutil.rmtree(path)
    capsys.readouterr()
    assert compare(copy, *TWO, *BOTH) == 0
    said = [line.split(":")[0] for line in heard(capsys.readouterr().err)]
    assert said == [f"{prompt}, {name}" for prompt in (PROMPT, ROCKET) for name in drawn]
    assert read_similarity(copy) == read_similarity(whole)


@pytest.mark.parametrize("option", [[], ["--overwrite"]])
def test_old_numbers_do_not_stay_beside_new_images(copy, option, monkeypatch):
    """Killed as soon as the first new image is written."""
    shutil.rmtree(copy / "images")

    def write_and_stop(*arguments: Any) -> None:
        write_image(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "write_image", write_and_stop)
    assert compare(copy, *TWO, *BOTH, *option) == 130
    assert {path.name for path in copy.iterdir()} - {"compare.jsonl"} == {"images"}
    ledger = copy / "compare.jsonl"
    assert not ledger.exists() or not any(json.loads(line)["result"] for line in ledger.read_text().splitlines()[1:])


def test_results_of_other_settings_are_refused_in_one_sentence_and_overwritten_on_demand(whole, copy, capsys):
    remedy = f"give another --output, or --overwrite to start over: {copy}/compare.jsonl was measured with"
    other = shutil.copytree(tiny.PHOTOGRAPHS, copy.parent / "photographs")  # of the same name
    Path(other, "model_index.json").touch()
    for given, words in (
        (["--steps", "2"], "steps 1, and this run has 2"), (["--cache", "0.5"], "other configurations"),
        (["--model", str(other)], "other model files"),
    ):  # fmt: skip
        capsys.readouterr()
        assert compare(copy, *TWO, *BOTH, *given) == 2
        assert heard(capsys.readouterr().err)[-1] == f"ppdiffusers-tome: error: {remedy} {words}"
    assert read_keys(copy) == read_keys(whole)
    assert compare(copy, "--prompt", PROMPT, "--ratios", "0.5", "--steps", "2", "--overwrite") == 0
    assert read_keys(copy) == [[PROMPT, 0]]
    (image,) = (path.relative_to(whole) for path in whole.glob("images/unmerged-*/*cat*"))
    assert (pixels_of(whole / image) != pixels_of(copy / image)).any()


def test_a_cache_alone_has_no_warning_that_it_does_nothing(tmp_path, capsys):
    given = ["--ratios", "0", "--cache", "0.2", "--prompt", PROMPT, "--steps", "9"]
    assert compare(tmp_path, *given) == 0
    assert "warning" not in "".join(heard(capsys.readouterr().err))


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
def test_compiled_settings_are_warm_when_timed_and_have_no_column_of_memory(tmp_path, monkeypatch, capsys):
    pytest.importorskip("openvino")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    generate, make_program, is_timed = LoadedPipeline.generate, CompiledModel._make_program, []

    def note_what_is_timed(loaded: LoadedPipeline, *given: Any, **settings: Any) -> Any:
        is_timed[:] = [] if "after_step" in settings else [True]
        return generate(loaded, *given, **settings)

    def make(*given: Any) -> Any:
        assert not is_timed
        return make_program(*given)

    monkeypatch.setattr(LoadedPipeline, "generate", note_what_is_timed)
    monkeypatch.setattr(CompiledModel, "_make_program", make)
    given = ["--configs", "balanced", "--cache", "0.2", "--steps", "9", "--compile", "--prompt", PROMPT]
    assert compare(tmp_path / "a", *given) == 0
    assert "was compiled in" in (captured := capsys.readouterr()).err
    assert "computed by Paddle" not in captured.err
    assert "peak memory" not in captured.out
    assert {row["denoising_peak_bytes"] for row in read_rows(tmp_path / "a").values()} == {None}


def test_a_scheduler_that_cannot_run_one_step(tmp_path, capsys):
    """PNDM with Runge-Kutta steps, ppdiffusers' default, takes four or more; a warm-up needs one elsewhere."""
    model = Path(shutil.copytree(tiny.EMOJI, tmp_path / "model"))
    config = json.loads((model / "scheduler/scheduler_config.json").read_text())
    (model / "scheduler/scheduler_config.json").write_text(json.dumps(config | {"skip_prk_steps": False}))
    given = ["--model", str(model), "--steps", "4", "--prompt", "bird"]
    assert compare(tmp_path / "a", *given, "--ratios", "0.5") == 0
    assert compare(tmp_path / "b", *given, "--ratios", "--fewer-steps", "2") == 2
    assert "PNDMScheduler cannot run 2 steps here" in capsys.readouterr().err
    assert main(["tune", *SMALL, *given, "--configs", "balanced", "--output", str(tmp_path / "c")]) == 0


def test_nothing_is_lost_when_nobody_reads_the_output(tmp_path, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", os.fdopen(write, "w"))
        assert compare(tmp_path, "--ratios", "0.5", "--prompt", PROMPT) == 141
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
