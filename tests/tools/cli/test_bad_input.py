"""Whatever is wrong with the input: exit code 2, one line on standard error that helps, nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import paddle
import pytest

from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import model_loader
from ppdiffusers_tome.tools.generation.model_sources import find_model
from tools.cli.conftest import PROMPT, SMALL

MODEL = find_model("bundled").folder

# Arguments (after a prompt and a small size), and a part of the sentence that must come.
CASES = {
    "height not a multiple of 8": (["--height", "100"], "--height 100 must be a multiple of 8"),
    "larger than memory": (["--height", "100000", "--width", "100000"], "--width 100000: the attention of the"),
    "wider than memory": (["--width", "8000000"], "--height 64 and --width 8000000: the attention of the VAE alone"),
    "width 0": (["--width", "0"], "--width 0 must be a multiple of 8 above 0, such as 8"),
    "height negative": (["--height", "-64"], "--height -64 must be a multiple of 8"),
    "no steps": (["--steps", "0"], "--steps 0 must be 1 or more"),
    "steps not a number": (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
    "seed negative": (["--seed", "-1"], "--seed -1 must be from 0"),
    "guidance nan": (["--guidance-scale", "nan"], "--guidance-scale nan must be a finite number"),
    "guidance infinite": (["--guidance-scale", "inf"], "--guidance-scale inf must be a finite number"),
    "controlnet scale infinite": (["--controlnet-scale", "inf"], "--controlnet-scale inf must be a finite number"),
    "ratio too large": (["--ratio", "0.8"], "ratio=0.8 must be at least 0 and below 0.75 for a 2x2 stride"),
    "ratio negative": (["--ratio", "-0.1"], "ratio=-0.1 must be at least 0"),
    "ratio nan": (["--ratio", "nan"], "ratio=nan must be at least 0"),
    "stride 0": (["--sx", "0"], "sx=0 must be 1 or more"),
    "stride 1": (["--sx", "1", "--sy", "1"], "sx=1 and sy=1 make every token a destination"),
    "level": (["--max-downsample", "3"], "max_downsample=3 must be 1, 2, 4, 8 or None"),
    "nothing to merge around": (["--no-merge-attn"], "nothing would merge"),
    "tome seed": (["--tome-seed", "-1"], "seed=-1 must be from 0"),
    "tile": (["--tile", "1"], "tile=1 must be at least 2 for a 2x2 stride"),
    "preset and another method": (["--config", "quality", "--method", "tome"], "omit method, or pass ratio as well"),
    "preset and what it has no use for": (["--config", "quality", "--tile", "16"], "comes from the preset 'quality'"),
    "a preset mistyped": (["--config", "balance"], "the presets are balanced, fast, quality; did you mean balanced?"),
    "no such settings": (["--config", "nowhere.json"], "nowhere.json cannot be read as settings of token merging"),
    "reuse steps": (["--reuse-steps", "0"], "reuse_steps=0 must be 1 (no reuse) or more"),
    "scheduler": (["--scheduler", "ddmi"], "argument --scheduler: invalid choice: 'ddmi'"),
    "dtype": (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
    "two kinds of attention": (["--xformers", "--chunked-attention"], "were both given; give --xformers on a GPU"),
    "blank prompt": (["--prompt", " "], "--prompt ' ' is empty"),
    "no such model": (["--model", "./nowhere"], "--model ./nowhere does not exist; give a pipeline's folder"),
    "model is a file": (["--model", __file__], "is a file; give a pipeline's folder"),
    "model cannot be fetched": (["--model", "nobody/nothing"], "--model nobody/nothing could not be loaded"),
    "no such controlnet": (["--controlnet", "./nowhere", "--image", "PHOTO"], "--controlnet ./nowhere does not exist"),
    "controlnet is a pipeline": (["--controlnet", str(MODEL), "--image", "PHOTO"], "has no config.json"),
    "controlnet without edges": (["--controlnet", "bundled"], "--controlnet needs edges"),
    "both images": (["--image", "PHOTO", "--control-image", "PHOTO"], "give the photo or its edges, not both"),
    "no such image": (["--image", "nowhere.png"], "--image nowhere.png does not exist"),
    "image is text": (["--image", __file__], "cannot be read as a picture; give a PNG or JPEG file"),
    "image is a folder": (["--control-image", "FOLDER"], "cannot be read as a picture"),
    "image without controlnet": (["--model", "some/model", "--image", "PHOTO"], "--image needs a ControlNet that fits"),
    "thresholds out of order": (["--image", "PHOTO", "--canny-low", "300"], "low not above high"),
    "output is a file": (["--output", __file__], "is a file; give a folder"),
    "output under a file": (["--output", f"{__file__}/x"], "cannot be written"),
    "output cannot be written": (["--output", "/proc/nowhere"], "--output /proc/nowhere cannot be written"),
}


def complaint_of(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    """Run the program, expect it to refuse, and return its one line."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("ppdiffusers-tome: error: ")
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_one_line(name, capsys, tmp_path, photo):
    arguments, sentence = CASES[name]
    given = [{"PHOTO": str(photo), "FOLDER": str(tmp_path)}.get(argument, argument) for argument in arguments]
    output = tmp_path / "outputs"
    before = ["generate", *SMALL, "--prompt", PROMPT, "--output", str(output)]
    assert sentence in complaint_of([*before, *given], capsys)
    assert not output.exists() or list(output.iterdir()) == []


def test_no_prompt_is_refused(capsys, tmp_path):
    assert "there is no prompt" in complaint_of(["generate", "--output", str(tmp_path)], capsys)


@pytest.mark.parametrize("arguments", [["--ratios", "0"], ["--ratios", "0.5", "0.9"], ["--ratios", "many"]])
def test_bad_ratios_of_compare_are_refused(arguments, capsys, tmp_path):
    assert "ratio" in complaint_of(["compare", *SMALL, "--output", str(tmp_path), *arguments], capsys)


@pytest.mark.skipif(paddle.get_device() != "cpu", reason="these need a GPU, and here is one")
@pytest.mark.parametrize("arguments", [["--dtype", "float16"], ["--dtype", "bfloat16"], ["--xformers"]])
def test_what_needs_a_gpu_says_so_on_a_cpu(arguments, capsys, tmp_path):
    line = complaint_of(["generate", *SMALL, "--prompt", PROMPT, "--output", str(tmp_path), *arguments], capsys)
    assert f"{' '.join(arguments)} needs a GPU: Paddle's" in line


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("model_index.json", "has no model_index.json"),
        ("unet", "unet of a pipeline (UNet2DConditionModel) is missing or empty"),
        ("vae/config.json", "vae/config.json of a pipeline (AutoencoderKL) is missing"),
        ("text_encoder/model.safetensors", "text_encoder of a pipeline (CLIPTextModel) holds no weights"),
        ("tokenizer", "tokenizer of a pipeline (CLIPTokenizer) is missing or empty"),
        ("scheduler/scheduler_config.json", "scheduler of a pipeline (DDIMScheduler) is missing or empty"),
    ],
)
def test_missing_part_of_a_model_is_named(missing, sentence, capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    line = complaint_of(["generate", "--model", str(folder), "--prompt", PROMPT, "--output", str(tmp_path)], capsys)
    assert sentence in line


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model_index.json", b"{"),
        ("model_index.json", b"[]"),
        ("model_index.json", json.dumps({"_class_name": "SomePipeline"}).encode()),
        ("unet/diffusion_paddle_model.safetensors", b"cut off"),
        ("unet/config.json", b"{"),
    ],
)
def test_damaged_model_is_refused(file, content, capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    (folder / file).write_bytes(content)
    arguments = ["generate", "--model", str(folder), "--prompt", PROMPT, "--output", str(tmp_path / "outputs")]
    assert str(folder) in complaint_of(arguments, capsys)


def test_nothing_to_merge_is_the_librarys_sentence(capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    from ppdiffusers import UNet2DConditionModel

    unet = UNet2DConditionModel(
        block_out_channels=[16], down_block_types=["DownBlock2D"], up_block_types=["UpBlock2D"], mid_block_type=None,
        layers_per_block=1, norm_num_groups=4, cross_attention_dim=128, sample_size=8,
    )  # fmt: skip
    shutil.rmtree(folder / "unet")
    unet.save_pretrained(str(folder / "unet"))
    capsys.readouterr()
    before = ["generate", *SMALL, "--model", str(folder), "--prompt", PROMPT, "--output", str(tmp_path / "outputs")]
    assert "has nothing to merge" in complaint_of(before, capsys)


def test_existing_file_is_refused_before_any_work(capsys, tmp_path, monkeypatch):
    existing = tmp_path / "0001-a-photo-of-a-cat.png"
    existing.write_bytes(b"mine")
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    line = complaint_of(["generate", *SMALL, "--prompt", PROMPT, "--output", str(tmp_path)], capsys)
    assert "exists already; choose another --output, or replace it with --overwrite" in line
    assert existing.read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == [existing.name]


@pytest.mark.parametrize("name", ["compare.png", "compare.md", "compare.json"])
def test_existing_comparison_is_refused(name, capsys, tmp_path: Path):
    (tmp_path / name).write_bytes(b"mine")
    assert "exists already" in complaint_of(["compare", *SMALL, "--output", str(tmp_path)], capsys)
    assert (tmp_path / name).read_bytes() == b"mine"
