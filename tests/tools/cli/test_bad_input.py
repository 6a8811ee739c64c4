"""Bad input: exit code 2, one line on standard error that helps, nothing written and no model loaded."""

from __future__ import annotations

import json
import shlex
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
GENERATE = ["generate", "--prompt", PROMPT]

# A command line, and a part of the sentence that must come.
CASES = f"""
generate | there is no prompt
generate --prompt ' ' | --prompt ' ' is empty
generate --prompt x --height 100 | --height 100 must be a multiple of 8
generate --prompt x --height 100000 --width 100000 | --width 100000: the attention of the
generate --prompt x --steps 0 | --steps 0 must be 1 or more
generate --prompt x --seed -1 | --seed -1 must be from 0
generate --prompt x --guidance-scale nan | --guidance-scale nan must be a finite number
generate --prompt x --ratio 0.8 | ratio=0.8 must be at least 0 and below 0.75 for a 2x2 stride
generate --prompt x --cache x | 'x' is no fraction
generate --prompt x --config quality --method tome | omit method, or pass ratio as well
generate --prompt x --config balance | did you mean balanced?
generate --prompt x --xformers --chunked-attention | were both given; give --xformers on a GPU
generate --prompt x --model ./nowhere | --model ./nowhere does not exist; give a pipeline's folder
generate --prompt x --model {__file__} | is a file; give a pipeline's folder
generate --prompt x --controlnet {MODEL} --image PHOTO | has no config.json
generate --prompt x --controlnet bundled | --controlnet needs edges
generate --prompt x --image PHOTO --control-image PHOTO | give the photo or its edges, not both
generate --prompt x --image nowhere.png | --image nowhere.png does not exist
generate --prompt x --image {__file__} | cannot be read as an image; give a PNG or JPEG file
generate --prompt x --model some/model --image PHOTO | --image needs a ControlNet that fits
generate --prompt x --image PHOTO --canny-low 300 | low not above high
generate --prompt x --output {__file__} | is a file; give a folder
generate --prompt x --output /proc/nowhere | --output /proc/nowhere cannot be written
generate --prompt x --batch-size 2 | --batch-size 2 is for files of prompts
generate --prompt x --prompts FILE | --prompt and --prompts were both given
generate --prompts nowhere.jsonl | nowhere.jsonl cannot be read
generate --prompts FILE --batch-size 0 | --batch-size 0 must be 1 or more
generate --prompts FILE --controlnet bundled | --controlnet needs edges
generate --prompts FILE --image-root {"x" * 300} | is not a folder
generate --prompts FILE --image PHOTO --model some/model | --image needs a ControlNet
generate --prompt dog --model bundled-dit | prompt 'dog' is not a class of this DiTPipeline
compare --model bundled-dit --negative-prompt x | --negative-prompt is for pipelines with prompts
tune --model bundled-dit --image PHOTO | --image is for pipelines with prompts
visualize --model bundled-dit --height 64 | height 64 is not the size of this DiTPipeline, 512x512 pixels
doctor --model bundled --height 100 | --height 100 must be a multiple of 8
doctor --model bundled --xformers --chunked-attention | give one of them
doctor --model bundled --height 100000 --width 100000 | alone takes at least
doctor --json | --json is for --environment; give both, or neither
doctor --environment --model bundled | --environment was given with --model or --markdown; give one
export --rows 0 | --rows 0 must be 1 or more
export --tolerance 0 | --tolerance 0.0 must be above 0
export --min-similarity 0.9 | min_similarity cannot be exported
export --controlnet nowhere | --controlnet nowhere does not exist
export --output /proc/nowhere | cannot be written
"""
if paddle.get_device() == "cpu":
    CASES += """
generate --prompt x --dtype float16 | --dtype float16 needs a GPU
doctor --model bundled --xformers | --xformers needs a GPU
"""


def get_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run the program, expect it to refuse, and return its one line."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("ppdiffusers-tome: error: ")
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("case", [*filter(None, CASES.splitlines())])
def test_bad_input_is_refused_in_one_line(case, capsys, tmp_path, photo, monkeypatch):
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    (tmp_path / "prompts.txt").write_text(PROMPT)
    line, sentence = case.split(" | ")
    files = {"PHOTO": str(photo), "FILE": str(tmp_path / "prompts.txt")}
    arguments = [files.get(argument, argument) for argument in shlex.split(line)]
    if "--output" not in arguments and arguments[0] != "doctor":
        arguments += ["--output", str(tmp_path / "outputs")]
    assert sentence in get_error(arguments, capsys)
    assert not (tmp_path / "outputs").exists() or not list((tmp_path / "outputs").iterdir())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("SHA256SUMS")))


def get_model_error(model: Path, capsys: pytest.CaptureFixture[str]) -> str:
    return get_error([*GENERATE, *SMALL, "--output", str(model.parent / "outputs"), "--model", str(model)], capsys)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model_index.json", None, "has no model_index.json"),
        ("model_index.json", b"{", "cannot be read"),
        ("model_index.json", b'{"_class_name": "SomePipeline"}', "without a unet and a vae"),
        ("model_index.json", b'{"_class_name": "PaddleInferStableDiffusionPipeline"}', "load_exported("),
        ("unet", None, "could not be loaded; check that its files are complete"),
        ("unet/config.json", b"{", "cannot be read"),
        ("unet/diffusion_paddle_model.safetensors", b"cut off", "could not be loaded"),
        ("unet/diffusion_paddle_model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("vae/config.json", None, "could not be loaded; check that its files are complete"),
        ("text_encoder/model.safetensors", None, "could not be loaded; check that its files are complete"),
        ("tokenizer/vocab.json", None, "could not be loaded; check that its files are complete"),
    ],
)
def test_damaged_or_missing_part_of_a_model_is_named(file, content, words, model, capsys):
    path = model / file
    if content is not None:
        path.write_bytes(content)
    else:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
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
    assert "the model's UniPCMultistepScheduler cannot run" in get_model_error(model, capsys)


def test_nothing_to_merge_is_the_librarys_sentence(model, capsys):
    unet = ppdiffusers.UNet2DConditionModel(
        block_out_channels=[16], down_block_types=["DownBlock2D"], up_block_types=["UpBlock2D"], mid_block_type=None,
        layers_per_block=1, norm_num_groups=4, cross_attention_dim=128, sample_size=8,
    )  # fmt: skip
    shutil.rmtree(model / "unet")
    unet.save_pretrained(str(model / "unet"))
    capsys.readouterr()
    assert "has nothing to merge" in get_model_error(model, capsys)


def test_hub_that_cannot_be_reached_is_one_line(tmp_path, capsys):
    error = get_error([*GENERATE, "--model", "nobody/nothing", "--output", str(tmp_path / "outputs")], capsys)
    assert "--model nobody/nothing could not be loaded; check the name and the network" in error


def test_existing_file_is_refused_before_any_work(capsys, tmp_path, monkeypatch):
    existing = tmp_path / "0001-a-photo-of-a-cat.png"
    existing.write_bytes(b"mine")
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    line = get_error([*GENERATE, "--output", str(tmp_path)], capsys)
    assert "exists already; choose another --output, or replace it with --overwrite" in line
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(existing.name, b"mine")]
