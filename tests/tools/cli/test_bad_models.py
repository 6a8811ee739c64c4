"""Models that cannot be used, or bring code: one line says so, and nothing of theirs runs."""

import json
import pickle
import shutil
from pathlib import Path

import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome.tools.cli.program import main
from tools.cli.helpers import PROMPT, SMALL, change_json

GENERATE = ["generate", *SMALL, "--prompt", PROMPT]
UNIPC = {"_class_name": "UniPCMultistepScheduler", "solver_order": 3, "prediction_type": "none"}  # no version runs it


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model_index.json", b"[]", "could not be loaded; check that its files are complete"),
        ("demonstration.json", b'{"steps": 10', "demonstration.json cannot be used (JSONDecodeError: "),
        ("demonstration.json", b'{"steps": "ten"}', "demonstration.json cannot be used (ValueError: "),
        ("demonstration.json", b'{"guidance_scale": "x"}', "demonstration.json cannot be used (ValueError: "),
        ("model_index.json", b'{"_class_name": "PaddleInferStableDiffusionPipeline"}', "which this command cannot use"),
        ("model_index.json", b'{"_class_name": "DiTPipeline", "vae": ["ppdiffusers"]}', "could not be loaded"),
        ("unet/diffusion_paddle_model.safetensors", b"cut off", "could not be loaded"),
        ("text_encoder/model.safetensors", None, "could not be loaded; check that its files are complete"),
        ("text_encoder/model.safetensors", Path("gone"), "could not be loaded; check that its files are complete"),
    ],
)
def test_damaged_model_is_refused(file, content, words, model, get_error):
    (model / file).unlink()
    if isinstance(content, Path):  # of a link
        (model / file).symlink_to(content)
    elif content is not None:
        (model / file).write_bytes(content)
    assert words in get_error(*GENERATE, "--model", str(model))


def test_a_scheduler_that_no_version_runs_and_a_unet_without_attention_are_refused(model, get_error):
    plain = ppdiffusers.UNet2DConditionModel(
        block_out_channels=[16], down_block_types=["DownBlock2D"], up_block_types=["UpBlock2D"], mid_block_type=None,
        layers_per_block=1, norm_num_groups=4, cross_attention_dim=128, sample_size=8,
    )  # fmt: skip
    plain.save_pretrained(str(model / "unet"))
    assert "has nothing to merge" in get_error(*GENERATE, "--model", str(model))
    (model / "scheduler" / "scheduler_config.json").write_text(json.dumps(UNIPC))
    change_json(model / "model_index.json", scheduler=["ppdiffusers", UNIPC["_class_name"]])
    assert "UniPCMultistepScheduler cannot run" in get_error(*GENERATE, "--model", str(model))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((f"StableDiffusion{kind}Pipeline", "which this command cannot use; give a text-to-image pipeline")
          for kind in ("Img2Img", "Inpaint", "Panorama")),
        ("StableDiffusionControlNetPipeline", "cannot use; name its ControlNet by --controlnet"),
        ("LatentConsistencyModelPipeline", "--negative-prompt has no effect in a LatentConsistencyModelPipeline"),
    ],
)  # fmt: skip
def test_pipeline_that_takes_other_arguments_is_refused(kind, words, tmp_path, get_error):
    model = Path(shutil.copytree(tiny.EMOJI, tmp_path / "emoji"))
    change_json(model / "model_index.json", _class_name=kind)
    given = ["--prompt", "bird", "--negative-prompt", "red"]
    assert words in get_error("generate", *given, "--model", str(model))


def test_controlnet_of_another_model_is_refused(photo, get_error):
    given = ["--model", "emoji", "--controlnet", "controlnet", "--image", str(photo), "--prompt", "bird"]
    assert "block_out_channels is [96, 96, 160, 160], and that of the model [64, 96, 1" in get_error("generate", *given)


def test_hub_that_cannot_be_reached_is_one_line(get_error):
    error = get_error(*GENERATE, "--model", "nobody/nothing")
    assert "--model nobody/nothing could not be loaded; check the name and the network, or give a small model" in error
    assert "of examples/models: dit, emoji, photographs" in error


@pytest.mark.parametrize(("named", "index"), [
    ("unet/mine.py", {"unet": ["mine", "Mine"]}), ("unet/ppdiffusers.py", {"unet": ["ppdiffusers", "Mine"]}),
    ("mine.py", {"_class_name": ["mine", "Mine"]}), ("the module this", {"unet": ["this", "Mine"]}),
    ("None.py", {}),
])  # fmt: skip
def test_a_model_with_code_of_its_own_is_refused(named, index, model, tmp_path, get_error):
    if named.endswith(".py"):
        code = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nfrom ppdiffusers import UNet2DConditionModel as Mine\n"
        (model / named).write_text(code)
    change_json(model / "model_index.json", **index)
    for command in (GENERATE, ["compare", *SMALL]):
        error = get_error(*command, "--model", str(model))
        assert named in error
        assert "load the model in Python" in error
    assert not (tmp_path / "ran").exists()


class Marks:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


def test_pickled_weights_are_named_before_they_are_loaded(model, tmp_path, capsys):
    safe = model / "unet" / "diffusion_paddle_model.safetensors"
    safe.rename(safe.with_suffix(".fp16.safetensors"))  # which ppdiffusers reads where there is nothing else
    (model / "unet" / "model_state.pdparams").write_bytes(pickle.dumps({"a": Marks(tmp_path / "ran")}))
    assert main([*GENERATE, "--model", str(model), "--output", str(tmp_path / "out")]) == 2
    _, first, *_ = capsys.readouterr().err.splitlines()  # after loading
    assert "weights are pickles, which can run any code" in first
    assert first.endswith(": unet/model_state.pdparams")
    assert (tmp_path / "ran").exists()


def test_pickles_beside_safetensors_are_not_warned_of(model, tmp_path, capsys):
    """Folders of hubs often hold both; ppdiffusers reads the safetensors."""
    (model / "unet" / "diffusion_paddle_model.pdparams").write_bytes(pickle.dumps({"a": Marks(tmp_path / "ran")}))
    assert main([*GENERATE, "--model", str(model), "--output", str(tmp_path / "out")]) == 0
    assert "pickles" not in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
