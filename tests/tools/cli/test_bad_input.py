"""Bad input: exit code 2, one line on standard error that helps, nothing written and no model loaded."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import loading
from ppdiffusers_tome.tools.generation.models import find_model
from tools.cli.conftest import PROMPT, SMALL, heard

MODEL = find_model("photographs").folder

# A command line, and a part of the sentence that must come.
CASES = f"""
generte | did you mean generate?; see ppdiffusers-tome --help
generate --promt=x | '--promt=x' is not an argument of generate; did you mean --prompt?
generate --prompt x --no-merge-atn | is not an argument of generate; did you mean --merge-attn?
generate --prompt x --method tood | did you mean todo?
generate | there is no prompt; give one with --prompt 'a photo of an astronaut'
generate --model emoji | there is no prompt; give one with --prompt 'face'
generate --model dit | there is no prompt; give one with --prompt 'astronaut'
generate --prompt a\udcd2 | --prompt 'a\\udcd2' must be text
generate --prompt x --negative-prompt \udcd2 | --negative-prompt '\\udcd2' must be text
generate --prompt x --height 100 | --height 100 must be a multiple of 8
generate --prompt x --guidance-scale nan | --guidance-scale nan must be a finite number
generate --prompt x --ratio 0.8 | ratio=0.8 must be at least 0 and below 0.75 for a 2x2 stride
generate --prompt x --cache x | cache='x' must be the fraction of steps
generate --prompt x --config balance | did you mean balanced?
generate --prompt x --config balanced --ratio 0.5 | --ratio 0.5 and --config balanced both hold the ratio; give one
visualize --config tome.json --ratio 0.5 | --ratio 0.5 and --config tome.json both hold the ratio; give one
visualize --compile | --compile has no effect here: merging is recorded in Paddle's own layers; omit it
generate --prompt x --xformers --compile | --compile: not allowed with argument --xformers
generate --prompt x --compile half | --compile: invalid choice: 'half' (choose from 'float32', 'bfloat16', 'int8')
generate --prompt x --compile --dtype float16 | --compile is for --dtype float32 on a CPU, and this is float16
generate --prompt x --model '' | --model has no model_index.json
generate --prompt x --config '' | cannot be read as settings
generate --prompt x --model ./nowhere | --model ./nowhere does not exist; give a pipeline's folder
generate --prompt x --model controlnet | --model controlnet has no model_index.json
generate --prompt x --model photograph | does not exist; give a pipeline's folder, a hub name or a small model of exam
generate --prompt x --controlnet {MODEL} --image PHOTO | has no config.json
generate --prompt x --controlnet {MODEL}/unet --image PHOTO | holds a UNet2DConditionModel
generate --prompt x --controlnet controlnet | --controlnet needs the edges of a photo
generate --prompt x --image {__file__} | cannot be read as an image; give a PNG or JPEG file
generate --prompt x --model some/model --image PHOTO | --image needs a ControlNet that fits
generate --prompt x --output /proc/nowhere | /proc/nowhere cannot be written
generate --prompts nowhere.txt | nowhere.txt cannot be read (No such file or directory); give a text with
doctor --model photographs | '--model' is not an argument of doctor
generate --prompts FILE --controlnet-scale 2 | --controlnet-scale needs the edges of a photo
compare --ratios | nothing is to be compared with the unmerged pipeline
compare --configs nowhere.json | --configs nowhere.json cannot be read
compare --seeds -1 | --seeds -1 must be from 0 to 2**62
compare --prompts /dev/null | --prompts /dev/null holds no prompt
compare --prompts /proc/self/exe | --prompts /proc/self/exe cannot be read (it is not text in UTF-8); give a text
compare --output TAKEN | compare.md exists already; choose another --output, or replace it with --overwrite
generate --prompt x --output TAKEN | /0001-x.png is there and differs in its prompt
tune --target-psnr -3 | target psnr=-3.0 must be a number of dB above 0, at most 100
tune --configs nowhere.json | nowhere.json cannot be read as settings
tune --ratio 0.5 | '--ratio' is not an argument of tune
generate --prompt x --cache 0,1,3 | cache='0,1,3' must be the fraction of steps to skip, 0 <= cache < 1; got str
visualize --ratio 0 | ratio 0 makes no groups of similar tokens
visualize --config balanced | ; give --method tome --ratio 0.5 in its place, or see the images with
visualize --config balanced | method todo) makes no groups of similar tokens, so there is nothing to show; give --method
visualize --prompt a --prompt b | 2 prompts were given
"""
if paddle.get_device() == "cpu":
    CASES += "generate --prompt x --dtype float16 | --dtype float16 needs a GPU\n"


def get_error(arguments, capsys):
    """Run the program, expect it to refuse, and return its one line."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    (error,) = heard(captured.err)
    assert error.startswith("ppdiffusers-tome: error: ")
    assert captured.out == ""
    return error


@pytest.mark.parametrize("case", [*filter(None, CASES.splitlines())])
def test_bad_input_is_refused_in_one_line(case, capsys, tmp_path, photo, monkeypatch):
    monkeypatch.setattr(loading, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    line, sentence = case.split(" | ")
    files = {"PHOTO": str(photo), "TAKEN": str(tmp_path / "taken")}
    files["FILE"] = str(tmp_path / "prompts.txt")
    (tmp_path / "taken").mkdir()
    for name in ("compare.md", "0001-x.png"):
        (tmp_path / "taken" / name).write_bytes(b"mine")
    (tmp_path / "prompts.txt").write_text(PROMPT)
    arguments = [files.get(argument, argument) for argument in shlex.split(line)]
    if "--output" not in arguments and arguments[0] not in ("doctor", "generte"):
        arguments += ["--output", str(tmp_path / "outputs")]
    assert sentence in get_error(arguments, capsys)
    assert not (tmp_path / "outputs").exists() or not list((tmp_path / "outputs").iterdir())
    assert [path.read_bytes() for path in (tmp_path / "taken").iterdir()] == [b"mine"] * 2


UNIPC = {"_class_name": "UniPCMultistepScheduler", "solver_order": 3, "prediction_type": "none"}  # no version runs it


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model_index.json", b"[]", "could not be loaded; check that its files are complete"),
        ("model_index.json", b'{"_class_name": "PaddleInferStableDiffusionPipeline"}', "which this command cannot use"),
        ("model_index.json", b'{"_class_name": "DiTPipeline", "vae": ["ppdiffusers"]}', "could not be loaded"),
        ("unet/diffusion_paddle_model.safetensors", b"cut off", "could not be loaded"),
        ("unet/diffusion_paddle_model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("text_encoder/model.safetensors", None, "could not be loaded; check that its files are complete"),
        ("scheduler/scheduler_config.json", json.dumps(UNIPC).encode(), "UniPCMultistepScheduler cannot run"),
        ("unet", None, "has nothing to merge"),
    ],
)
def test_damaged_model_is_refused(file, content, words, tmp_path, capsys):
    model = Path(shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("SHA256SUMS")))
    if file == "unet":
        shutil.rmtree(model / "unet")
        ppdiffusers.UNet2DConditionModel(
            block_out_channels=[16], down_block_types=["DownBlock2D"], up_block_types=["UpBlock2D"],
            mid_block_type=None, layers_per_block=1, norm_num_groups=4, cross_attention_dim=128, sample_size=8,
        ).save_pretrained(str(model / "unet"))  # fmt: skip
    elif content is None:
        (model / file).unlink()
    else:
        (model / file).write_bytes(content)
        index = (model / "model_index.json").read_text()
        if "scheduler" in file:
            (model / "model_index.json").write_text(index.replace("DDIMScheduler", UNIPC["_class_name"]))
    capsys.readouterr()
    output = ["--output", str(tmp_path / "outputs")]
    assert words in get_error(["generate", "--prompt", PROMPT, *SMALL, *output, "--model", str(model)], capsys)


def test_weights_of_a_variant_alone_are_named_with_their_usual_name(tmp_path, capsys):
    model = Path(shutil.copytree(MODEL, tmp_path / "model"))
    weights = model / "text_encoder" / "model.fp16.safetensors"
    weights.with_name("model.safetensors").rename(weights)
    error = get_error(["generate", "--prompt", PROMPT, "--model", str(model), "--output", str(tmp_path)], capsys)
    assert f"{weights} is a variant's, without the usual weights beside it; rename it to model.safetensors" in error


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((f"StableDiffusion{kind}Pipeline", "which this command cannot use; give a text-to-image pipeline")
          for kind in ("Img2Img", "Inpaint", "Panorama")),
        ("StableDiffusionControlNetPipeline", "cannot use; name its ControlNet by --controlnet"),
        ("LatentConsistencyModelPipeline", "--negative-prompt has no effect in a LatentConsistencyModelPipeline"),
    ],
)  # fmt: skip
def test_pipeline_that_takes_other_arguments_is_refused(kind, words, tmp_path, capsys):
    model = Path(shutil.copytree(tiny.EMOJI, tmp_path / "model"))
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps(index | {"_class_name": kind}))
    given = ["--prompt", "bird", "--negative-prompt", "red", "--output", str(tmp_path / "outputs")]
    assert words in get_error(["generate", *given, "--model", str(model)], capsys)


def test_controlnet_of_another_model_is_refused(tmp_path, photo, capsys):
    given = ["--model", "emoji", "--controlnet", "controlnet", "--image", str(photo), "--prompt", "bird"]
    error = get_error(["generate", *given, "--output", str(tmp_path)], capsys)
    assert "its block_out_channels is [96, 96, 160, 160], and that of the model [64, 96, 128]" in error


@pytest.mark.parametrize("arguments", [[], ["--model", "photographs"]])
def test_without_a_clone_a_model_is_asked_for(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ppdiffusers_tome.__file__", str(tmp_path / "ppdiffusers_tome" / "__init__.py"))
    error = get_error(["generate", "--prompt", "x", "--output", str(tmp_path), *arguments], capsys)
    assert "or a small model of examples/models in a clone of ppdiffusers_tome's repository" in error


def test_no_command_is_refused(capsys):
    assert "no command was given; the commands are compare, doctor" in get_error([], capsys)


def test_hub_that_cannot_be_reached_is_one_line(tmp_path, capsys):
    output = ["--output", str(tmp_path / "outputs")]
    error = get_error(["generate", "--prompt", PROMPT, "--model", "nobody/nothing", *output], capsys)
    assert "--model nobody/nothing could not be loaded; check the name and the network, or give a small model" in error
    assert "of examples/models: dit, emoji, photographs" in error
