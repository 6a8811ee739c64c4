"""Whatever is wrong with the input: exit code 2, one line on standard error that helps, nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import paddle
import ppdiffusers
import pytest

from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import model_loader
from ppdiffusers_tome.tools.generation.model_sources import find_model
from tools.cli.conftest import PROMPT, SMALL

MODEL = find_model("bundled").folder

# Arguments (after a prompt and a small size), and a part of the sentence that must come.
CASES = [
    (["--height", "100"], "--height 100 must be a multiple of 8"),
    (["--width", "0"], "--width 0 must be a multiple of 8 above 0, such as 8"),
    (["--height", "100000", "--width", "100000"], "--width 100000: the attention of the"),
    (["--steps", "0"], "--steps 0 must be 1 or more"),
    (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
    (["--seed", "-1"], "--seed -1 must be from 0"),
    (["--guidance-scale", "nan"], "--guidance-scale nan must be a finite number"),
    (["--controlnet-scale", "inf"], "--controlnet-scale inf must be a finite number"),
    (["--ratio", "0.8"], "ratio=0.8 must be at least 0 and below 0.75 for a 2x2 stride"),
    (["--no-merge-attn"], "nothing would merge"),
    (["--config", "quality", "--method", "tome"], "omit method, or pass ratio as well"),
    (["--config", "balance"], "did you mean balanced?"),
    (["--config", "nowhere.json"], "nowhere.json cannot be read"),
    (["--xformers", "--chunked-attention"], "were both given; give --xformers on a GPU"),
    (["--prompt", " "], "--prompt ' ' is empty"),
    (["--model", "./nowhere"], "--model ./nowhere does not exist; give a pipeline's folder"),
    (["--model", __file__], "is a file; give a pipeline's folder"),
    (["--model", "nobody/nothing"], "--model nobody/nothing could not be loaded"),
    (["--controlnet", "./nowhere", "--image", "PHOTO"], "--controlnet ./nowhere does not exist"),
    (["--controlnet", str(MODEL), "--image", "PHOTO"], "has no config.json"),
    (["--controlnet", "bundled"], "--controlnet needs edges"),
    (["--image", "PHOTO", "--control-image", "PHOTO"], "give the photo or its edges, not both"),
    (["--image", "nowhere.png"], "--image nowhere.png does not exist"),
    (["--image", __file__], "cannot be read as an image; give a PNG or JPEG file"),
    (["--model", "some/model", "--image", "PHOTO"], "--image needs a ControlNet that fits"),
    (["--image", "PHOTO", "--canny-low", "300"], "low not above high"),
    (["--output", __file__], "is a file; give a folder"),
    (["--output", "/proc/nowhere"], "--output /proc/nowhere cannot be written"),
    (["--batch-size", "2"], "--batch-size 2 is for files of prompts"),
]  # fmt: skip
if paddle.get_device() == "cpu":
    CASES += [(["--dtype", "float16"], "--dtype float16 needs a GPU"), (["--xformers"], "--xformers needs a GPU")]


def get_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run the program, expect it to refuse, and return its one line."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("ppdiffusers-tome: error: ")
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize(("arguments", "sentence"), CASES, ids=lambda value: str(value)[:40])
def test_bad_input_is_refused_in_one_line(arguments, sentence, capsys, tmp_path, photo):
    given = [str(photo) if argument == "PHOTO" else argument for argument in arguments]
    output = tmp_path / "outputs"
    common = ["generate", *SMALL, "--prompt", PROMPT, "--output", str(output)]
    assert sentence in get_error([*common, *given], capsys)
    assert not output.exists() or list(output.iterdir()) == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("SHA256SUMS")))


def get_model_error(model: Path, capsys: pytest.CaptureFixture[str]) -> str:
    common = ["generate", *SMALL, "--prompt", PROMPT, "--output", str(model.parent / "outputs")]
    return get_error([*common, "--model", str(model)], capsys)


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("model_index.json", "has no model_index.json"),
        ("unet", "unet of a pipeline (UNet2DConditionModel) is missing or empty"),
        ("vae/config.json", "vae/config.json of a pipeline (AutoencoderKL) is missing"),
        ("text_encoder/model.safetensors", "text_encoder of a pipeline (CLIPTextModel) holds no weights"),
        ("tokenizer/vocab.json", "tokenizer/vocab.json of a pipeline (CLIPTokenizer) is missing"),
        ("scheduler", "scheduler of a pipeline (DDIMScheduler) is missing or empty"),
    ],
)
def test_missing_part_of_a_model_is_named(missing, sentence, model, capsys):
    path = model / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert sentence in get_model_error(model, capsys)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model_index.json", b"{", "cannot be read"),
        ("model_index.json", b'{"_class_name": "SomePipeline"}', "without a unet and a vae"),
        ("model_index.json", b'{"_class_name": "PaddleInferStableDiffusionPipeline"}', "load_exported("),
        ("unet/config.json", b"{", "cannot be read"),
        ("unet/diffusion_paddle_model.safetensors", b"cut off", "could not be loaded"),
        ("unet/diffusion_paddle_model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_damaged_model_is_refused(file, content, words, model, capsys):
    (model / file).write_bytes(content)
    error = get_model_error(model, capsys)
    assert str(model) in error
    assert words in error


def test_model_whose_own_scheduler_cannot_run_needs_another(model, capsys):
    """As ppdiffusers' UniPC on Paddle 3; here its settings are such that no version runs it."""
    index = json.loads((model / "model_index.json").read_text())
    index["scheduler"] = ["ppdiffusers", "UniPCMultistepScheduler"]
    (model / "model_index.json").write_text(json.dumps(index))
    config = model / "scheduler" / "scheduler_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"solver_order": 3, "prediction_type": "none"}))
    assert "give another --scheduler" in get_model_error(model, capsys)


def test_nothing_to_merge_is_the_librarys_sentence(model, capsys):
    unet = ppdiffusers.UNet2DConditionModel(
        block_out_channels=[16], down_block_types=["DownBlock2D"], up_block_types=["UpBlock2D"], mid_block_type=None,
        layers_per_block=1, norm_num_groups=4, cross_attention_dim=128, sample_size=8,
    )  # fmt: skip
    shutil.rmtree(model / "unet")
    unet.save_pretrained(str(model / "unet"))
    capsys.readouterr()
    assert "has nothing to merge" in get_model_error(model, capsys)


def test_existing_file_is_refused_before_any_work(capsys, tmp_path, monkeypatch):
    existing = tmp_path / "0001-a-photo-of-a-cat.png"
    existing.write_bytes(b"mine")
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    line = get_error(["generate", *SMALL, "--prompt", PROMPT, "--output", str(tmp_path)], capsys)
    assert "exists already; choose another --output, or replace it with --overwrite" in line
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(existing.name, b"mine")]
    assert "there is no prompt" in get_error(["generate", "--output", str(tmp_path)], capsys)
