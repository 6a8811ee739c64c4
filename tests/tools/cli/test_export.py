"""``export`` and ``bench export``: what is written is what ppdiffusers' deploy pipelines draw with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from PIL import Image

import tiny
from ppdiffusers_tome import ToMeConfig, ToMeTypeError, ToMeValueError, apply_tome
from ppdiffusers_tome.export.pipelines import export_pipeline, load_exported
from ppdiffusers_tome.tools.bench.random_unets import RANDOM_UNETS
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import memory
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.generation.sampling import make_initial_noise
from tools.cli.conftest import PROMPT

SIZE = ["--height", "64", "--width", "64"]
FILES = {"export.json", "model_index.json", "scheduler", "text_encoder", "tokenizer", "tome.json", "unet",
         "vae_decoder", "vae_encoder"}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model, but with a UNet of one level, which is recorded in a fraction of the time."""
    folder = tmp_path_factory.mktemp("model") / "model"
    shutil.copytree(find_model("bundled").arguments[0], folder)
    shutil.rmtree(folder / "unet")
    tiny.unet(levels=1, mid_block_type=None, cross_attention_dim=128).save_pretrained(str(folder / "unet"))
    return folder


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    assert main(["export", *SIZE, "--model", str(model), "--ratio", "0.6", "--output", str(folder)]) == 0
    return folder


def test_what_is_written_and_recorded(exported: Path, model: Path) -> None:
    assert {path.name for path in exported.iterdir()} == FILES
    assert ToMeConfig.load(exported / "tome.json") == ToMeConfig(0.6)
    told = json.loads((exported / "export.json").read_text())
    assert (told["model"], told["height"], told["width"], told["rows"]) == (str(model), 64, 64, None)
    assert [part["name"] for part in told["components"]] == ["text_encoder", "unet", "vae_encoder", "vae_decoder"]
    for part in told["components"]:
        assert part["difference"] <= told["tolerance"] == 1e-4
        assert part["rows"] == [1, 2]
        for name in (*part["files"], "inference.pdiparams"):
            assert (exported / part["name"] / name).stat().st_size > 0
    assert told["components"][1]["inputs"]["sample"]["shape"] == [None, 4, 8, 8]
    (merging,) = told["tome"]["unet"]
    assert (ToMeConfig.from_dict(merging["settings"]), len(merging["blocks"])) == (ToMeConfig(0.6), 3)
    index = json.loads((exported / "model_index.json").read_text())
    assert index["_class_name"] == "PaddleInferStableDiffusionPipeline"
    assert index["unet"] == ["ppdiffusers", "PaddleInferRuntimeModel"]


def test_the_deploy_pipeline_draws_the_same_picture(exported: Path, model: Path) -> None:
    pipe = load_pipeline(find_model(str(model)))
    common = dict(height=64, width=64, num_inference_steps=2, guidance_scale=3.0, output_type="np")
    deployed = load_exported(exported)
    assert isinstance(deployed, ppdiffusers.PaddleInferStableDiffusionPipeline)
    noise = make_initial_noise(pipe, 64, 64, seed=0)
    drawn = np.asarray(deployed(PROMPT, latents=noise, parse_prompt_type="raw", **common).images)
    unmerged = np.asarray(pipe(PROMPT, latents=noise, **common).images)
    apply_tome(pipe, 0.6)
    assert np.abs(drawn - np.asarray(pipe(PROMPT, latents=noise, **common).images)).max() <= 1e-4
    assert np.abs(drawn - unmerged).max() > 1e-3


def test_the_exported_size_is_the_default(exported: Path) -> None:
    deployed = load_exported(exported)
    for size in ({}, dict(height=64), dict(width=64), dict(height=64, width=64)):
        assert deployed(PROMPT, num_inference_steps=1, **size).images[0].size == (64, 64)
    assert deployed(PROMPT, 64, 64, 1).images[0].size == (64, 64)


@pytest.mark.parametrize("size", [dict(height=96), dict(width=512), dict(height=128, width=128)])
def test_another_size_than_the_exported_one_is_refused(size: dict[str, int], exported: Path) -> None:
    with pytest.raises(ToMeValueError, match="this pipeline was exported for height=64, width=64 alone"):
        load_exported(exported)(PROMPT, num_inference_steps=1, **size)


def test_other_pipelines_of_the_programs_refuse_another_size(exported: Path) -> None:
    deployed = load_exported(exported)
    img2img = ppdiffusers.PaddleInferStableDiffusionImg2ImgPipeline(
        **deployed.components, requires_safety_checker=False
    )
    with pytest.raises(ToMeValueError, match=r"takes sample of shape \[any, 3, 64, 64\]; got \[1, 3, 96, 128\]"):
        img2img(PROMPT, image=Image.new("RGB", (128, 96)), num_inference_steps=2)


def test_latents_of_another_size_are_refused(exported: Path) -> None:
    with pytest.raises(ToMeValueError, match=r"takes sample of shape \[any, 4, 8, 8\]; got \[2, 4, 8, 16\]"):
        load_exported(exported)(PROMPT, latents=tiny.latent(1, 8, 16), num_inference_steps=1)


def test_an_export_without_its_description_loads(exported: Path, tmp_path: Path) -> None:
    """As ppdiffusers' own scripts write it."""
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    (folder / "export.json").unlink()
    assert load_exported(folder)(PROMPT, height=64, width=64, num_inference_steps=1).images[0].size == (64, 64)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (dict(height=100), ToMeValueError, "height=100 must be a multiple of 8"),
        (dict(width=0), ToMeValueError, "width=0 must be a multiple of 8"),
        (dict(width="64"), ToMeTypeError, "width='64' must be a whole number; got str"),
        (dict(rows=0), ToMeValueError, "rows=0 must be 1 or more"),
    ],
)
def test_errors_in_python_name_its_arguments(
    given: dict[str, Any], error: type[Exception], words: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        export_pipeline(load_pipeline(find_model(str(model))), tmp_path / "out", **{"height": 64, "width": 64, **given})
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(paddle.get_device() != "cpu", reason="a GPU can be waited for")
def test_what_a_callback_raises_is_no_end_of_the_loop(exported: Path) -> None:
    deployed = load_exported(exported)

    def waits(step: int, *_: object) -> None:
        if step == 1:
            paddle.device.synchronize()

    with pytest.raises(TypeError, match="device should be gpu"):
        deployed(PROMPT, height=64, width=64, num_inference_steps=3, callback=waits)
    assert list(deployed.progress_bar(range(2))) == [0, 1]


def test_as_documented(exported: Path) -> None:
    """docs/en/guides/export.md, "From Python", on whatever device this is."""
    image = load_exported(exported)("a photo of a cat").images[0]
    assert image.size == (64, 64)


def test_nothing_is_replaced_unasked(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (exported / "export.json").read_bytes()
    assert main(["export", *SIZE, "--output", str(exported)]) == 2
    error = capsys.readouterr().err
    assert "model_index.json exists already; choose another --output, or replace it with --overwrite" in error
    assert (exported / "export.json").read_bytes() == before


def test_a_models_own_folder_is_refused_at_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["export", *SIZE, "--model", str(model), "--output", str(folder), "--overwrite"]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert "that no export wrote (StableDiffusionPipeline)" in error
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.sweep
def test_overwriting_replaces_an_earlier_export_and_keeps_all_else(exported: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    others = ["unet/model_state.pdparams", "tokenizer/notes.txt", "picture.png"]
    stale = ["unet/inference.pdmodel", "vae_decoder/inference.onnx", "tome.unet.json"]
    for name in (*others, *stale):
        (folder / name).write_text("somebody's")
    given = ["--model", str(model), "--ratio", "0.3", "--output", str(folder)]
    assert main(["export", *SIZE, *given, "--overwrite"]) == 0
    assert [(folder / name).read_text() for name in others] == ["somebody's"] * len(others)
    assert ToMeConfig.load(folder / "tome.json") == ToMeConfig(0.3)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    written = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    assert files == written | set(others)
    assert load_exported(folder).unet is not None


@pytest.mark.sweep
def test_denoisers_of_different_settings_are_told_apart(exported: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    plain = load_pipeline(find_model(str(model)))
    # The UNet's shape, and edges eight times as large as the latent.
    controlnet = tiny.build(
        ppdiffusers.ControlNetModel, in_channels=4, block_out_channels=(8,), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D",), conditioning_embedding_out_channels=(8, 8, 8, 8),
        cross_attention_dim=128, attention_head_dim=2, norm_num_groups=4,
    )  # fmt: skip
    parts = {name: part for name, part in plain.components.items() if name != "image_encoder"}
    pipe = ppdiffusers.StableDiffusionControlNetPipeline(**parts, controlnet=controlnet, requires_safety_checker=False)
    pipe.unet.apply_tome(0.5)
    pipe.controlnet.apply_tome(0.3, method="prune")
    export_pipeline(pipe, folder, height=64, width=64, overwrite=True)
    assert {path.name for path in folder.iterdir()} == (FILES - {"tome.json"}) | {
        "tome.unet.json", "tome.controlnet.json",
    }  # fmt: skip
    tomes = {"unet": ToMeConfig(0.5), "controlnet": ToMeConfig(0.3, method="prune")}
    told = json.loads((folder / "export.json").read_text())["tome"]
    for name, tome in tomes.items():
        assert ToMeConfig.load(folder / f"tome.{name}.json") == tome
        assert [ToMeConfig.from_dict(entry["settings"]) for entry in told[name]] == [tome]
    assert isinstance(load_exported(folder), ppdiffusers.PaddleInferStableDiffusionControlNetPipeline)


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system", str(tmp_path))

    monkeypatch.setattr(Path, "mkdir", fail)
    assert main(["export", *SIZE, "--output", str(tmp_path / "out")]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert error.endswith("out cannot be written (Read-only file system); make room, or choose another --output")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--height", "100"], "--height 100 must be a multiple of 8"),
        (["--rows", "0"], "--rows 0 must be 1 or more"),
        (["--tolerance", "0"], "--tolerance 0.0 must be above 0"),
        (["--min-similarity", "0.9"], "min_similarity cannot be exported"),
        (["--end", "0.5"], "start or end cannot be exported"),
        (["--controlnet", "nowhere"], "--controlnet nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *arguments, "--output", str(tmp_path / "out")]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert words in error
    assert not list(tmp_path.iterdir())


def test_a_size_that_cannot_fit_is_refused_without_advice_that_export_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "get_free_bytes", lambda: 8 * 2**30)
    monkeypatch.setattr(memory, "installed_version", lambda package: None)
    given = ["--height", "1440", "--width", "1440", "--ratio", "0", "--output", str(tmp_path / "out")]
    assert main(["export", "--rows", "2", *given]) == 2
    assert capsys.readouterr().err.endswith("and 8.0 GiB are free; draw a smaller picture\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not paddle.__version__.startswith("3."), reason="Paddle 2 exports for ONNX")
def test_onnx_on_paddle_3_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--onnx", "--output", str(tmp_path / "out")]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert f"Paddle {paddle.__version__} cannot export for ONNX" in error
    assert "export with Paddle 2.6.2" in error
    assert not list(tmp_path.iterdir())


def test_bench_export(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # One level: recording a program takes long for each layer.
    shape = dict(
        cross_attention_dim=32, attention_head_dim=8, block_out_channels=(16,), norm_num_groups=8, layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",), mid_block_type=None,
    )  # fmt: skip
    monkeypatch.setitem(RANDOM_UNETS, "flat-random", shape)
    asked = ["--model", "flat-random", *SIZE, "--repeats", "2", "--output", str(tmp_path)]
    assert main(["bench", "export", *asked]) == 0
    found = json.loads((tmp_path / "export.json").read_text())
    names = [f"{kind}, {way}" for kind in ("unmerged", "merged") for way in ("dynamic", "program", "inference")]
    assert [row["name"] for row in found["rows"]] == names
    assert all(len(taken) == 2 and min(taken) > 0 for taken in found["seconds"].values())
    assert found["rows"][0]["speed_up"] == {"median": 1, "low": 1, "high": 1}
    assert (tmp_path / "export.md").read_text().splitlines()[0].removeprefix("# ") in capsys.readouterr().out
