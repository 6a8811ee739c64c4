"""``compare``: what it is asked to compare, its sheet, tables and images, and what is warm when it is timed."""

import json
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import paddle
import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.compilation.model import CompiledModel
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.machine import has_precision
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.compare.configurations import REFERENCE, Configuration, parse_compared
from ppdiffusers_tome.tools.compare.report import Report, Row
from ppdiffusers_tome.tools.compare.samples import Sample
from ppdiffusers_tome.tools.edges import load_edges
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.prompts import parse_prompts
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.helpers import PROMPT, ROCKET, SMALL, change_json, compare, heard, make_parser, pixels_of, read_rows

FILES = ["compare.json", "compare.jsonl", "compare.md", "compare.png", "images"]
HALF = Configuration("ratio 0.5", ToMeConfig(0.5))
PARSER = make_parser("compare")


def parse_configurations(*arguments: str) -> list[Configuration]:
    return parse_compared(PARSER.parse_args(arguments), steps=10)


def test_presets_and_files_of_settings_are_read(tmp_path):
    (tmp_path / "other").mkdir()
    for path, ratio in ((tmp_path / "careful.json", 0.3), (tmp_path / "other" / "careful.json", 0.4)):
        ToMeConfig(ratio=ratio, tile=8).save(path)
    careful = ["--configs", "quality", str(tmp_path / "careful.json")]
    assert parse_configurations() == [REFERENCE, Configuration("balanced", ToMeConfig.preset("balanced"))]
    assert parse_configurations(*careful) == [
        REFERENCE, Configuration("quality", ToMeConfig.preset("quality")),
        Configuration("careful", ToMeConfig(ratio=0.3, tile=8)),
    ]  # fmt: skip
    *_, with_option = parse_configurations(*careful, "--max-downsample", "1")
    assert with_option == Configuration("careful, max_downsample 1", ToMeConfig(ratio=0.3, tile=8, max_downsample=1))
    with pytest.raises(UserError, match="two different configurations are called 'careful'"):
        parse_configurations("--configs", str(tmp_path / "careful.json"), str(tmp_path / "other" / "careful.json"))
    assert [(each.name, each.steps) for each in parse_configurations("--ratios", "--fewer-steps", "1", "9")[1:]] == [
        ("1 step", 1), ("9 steps", 9)
    ]  # fmt: skip
    ToMeConfig(0).save(tmp_path / "nothing.json")
    with pytest.raises(UserError, match=r"nothing\.json changes nothing"):
        parse_configurations("--configs", str(tmp_path / "nothing.json"))
    cached = ToMeConfig(0.0, cache=0.5)
    for ratios in (["--ratios", "0"], []):
        assert parse_configurations(*ratios, "--cache", "0.5")[1:] == [Configuration(cached.summary, cached)]
    with pytest.raises(UserError, match="--fewer-steps 10 must be at least 1 and below 10"):
        parse_configurations("--fewer-steps", "10")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_prompts_come_from_files_too(tmp_path, encoding):
    path = tmp_path / "prompts"
    path.write_bytes("a red star\r\n \nein gelber Stern ⭐".encode(encoding))
    given = PARSER.parse_args(["--prompts", str(path), "--prompt", "a dog"])
    assert parse_prompts(given) == ["a dog", "a red star", "ein gelber Stern ⭐"]
    assert parse_prompts(PARSER.parse_args([]), ["a cat"]) == ["a cat"]


def make_row(configuration: Configuration, speed: float, psnrs: list[float] | None, num_images: int) -> Row:
    samples = [
        Sample("p", seed, seconds=10 / speed, unmerged_seconds=10.0, denoising_peak_bytes=None if seed else 5,
               peak_bytes=7, psnr_db=psnrs and psnrs[seed], ssim=psnrs and 0.9) for seed in range(num_images)
    ]  # fmt: skip
    return Row(configuration, samples)


def test_rows_are_medians_with_intervals_and_the_lowest():
    psnrs = np.random.default_rng(0).normal(30, 5, 8).tolist()
    plain, half = make_row(REFERENCE, 1.0, None, 8), make_row(HALF, 1.5, psnrs, 8)
    assert (plain.peaks, plain.medians.keys()) == (
        {"denoising_peak_bytes": None, "peak_bytes": 7}, {"seconds", "speedup"}
    )  # fmt: skip
    values = json.loads(json.dumps(half.to_dict()))
    low, high = values["psnr_db"]["interval"]
    assert low < values["psnr_db"]["median"] < high
    assert [Sample(**each) for each in values["samples"]] == half.samples
    (first, *_), (name, _, speedup, psnr, *_) = Report({}, {}, [plain, half]).make_table().rows
    assert (first, name, speedup) == ("unmerged", "ratio 0.5", "1.50x")
    assert psnr == f"{values['psnr_db']['median']:.1f} [{low:.1f}, {high:.1f}] ({min(psnrs):.1f})"
    run = dict(
        model="m", width=64, height=64, steps=2, scheduler="s", guidance_scale=1.0, dtype="float32", controlnet=None,
        xformers=False, compile=None, prompts=["p"], seeds=[0],
    )  # fmt: skip
    report = Report(run, {"memory": "of tensors"}, [plain, half])
    assert not any("busy" in note for note in report.notes)
    half.samples[0] = replace(half.samples[0], is_disturbed=True)
    assert "the machine was busy while 1 of 16 images were measured" in report.notes[-1]
    identical = make_row(HALF, 1.5, [math.inf] * 3, 3)
    assert (identical.medians["psnr_db"].median, identical.format("psnr_db")) == (math.inf, "identical")


def test_a_sheet_tables_and_images_are_written(tmp_path, capsys, generate):
    folder = tmp_path / "compare"
    arguments = ["--ratios", "0.5", "0.7", "--configs", "balanced", "--steps", "2", "--fewer-steps", "1"]
    assert compare(folder, *arguments, "--prompt", PROMPT, "--prompt", ROCKET, "--seeds", "5", "6") == 0
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
    assert rows["unmerged"]["speedup"] == {"median": 1, "least": 1, "greatest": 1, "interval": None}
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


def test_nothing_is_lost_when_nobody_reads_the_output(tmp_path, monkeypatch, capsys):
    """Of a cache alone, without a warning that it does nothing."""
    read, write = os.pipe()
    os.close(read)
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", os.fdopen(write, "w"))
        assert compare(tmp_path, "--ratios", "0", "--cache", "0.2", "--prompt", PROMPT, "--steps", "9") == 141
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert "warning" not in "".join(heard(capsys.readouterr().err))


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
@pytest.mark.parametrize(
    "settings",
    [
        ["--configs", "balanced", "--cache", "0.2", "--steps", "9", "--compile", "float32"],
        pytest.param(
            ["--ratios", "0.5", "--steps", "12", "--compile", "int8", "--height", "256", "--width", "256"],
            marks=pytest.mark.skipif(not has_precision("int8"), reason="needs a processor with 8 bits"),
        ),
    ],
    ids=["cache", "8 bits"],
)
def test_compiled_settings_are_warm_when_timed_and_have_no_column_of_memory(settings, tmp_path, monkeypatch, capsys):
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
    assert compare(tmp_path / "a", *settings, "--prompt", PROMPT) == 0
    assert "was compiled in" in (captured := capsys.readouterr()).err
    assert "computed by Paddle" not in captured.err
    assert "peak memory" not in captured.out
    assert {row["denoising_peak_bytes"] for row in read_rows(tmp_path / "a").values()} == {None}


def test_a_scheduler_that_cannot_run_one_step(model, tmp_path, capsys):
    """PNDM with Runge-Kutta steps, ppdiffusers' default, takes four or more; a warm-up needs one elsewhere."""
    change_json(model / "scheduler/scheduler_config.json", _class_name="PNDMScheduler", skip_prk_steps=False)
    change_json(model / "model_index.json", scheduler=["ppdiffusers", "PNDMScheduler"])
    given = ["--model", str(model), "--steps", "4", "--guidance-scale", "1", "--prompt", PROMPT]
    assert compare(tmp_path / "a", *given, "--ratios", "0.5") == 0
    assert compare(tmp_path / "b", *given, "--ratios", "--fewer-steps", "2") == 2
    assert "PNDMScheduler cannot run 2 steps here" in capsys.readouterr().err
    assert main(["tune", *SMALL, *given, "--configs", "balanced", "--output", str(tmp_path / "c")]) == 0
