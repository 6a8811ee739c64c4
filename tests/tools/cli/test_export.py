"""``export``: its files, and that they generate what the model does, in ppdiffusers' deploy pipelines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome import ToMeConfig, ToMeValueError, apply_tome
from ppdiffusers_tome.export.pipelines import load_exported
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.generation.sampling import make_initial_noise
from tools.cli.conftest import PROMPT

SIZE = ["--height", "64", "--width", "64"]
FILES = {"export.json", "model_index.json", "scheduler", "text_encoder", "tokenizer", "tome.json", "unet",
         "vae_decoder", "vae_encoder"}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The model of photographs, but with a UNet of one level, which is traced in a fraction of the time."""
    folder = tmp_path_factory.mktemp("model") / "model"
    shutil.copytree(find_model("photographs").folder, folder)
    shutil.rmtree(folder / "unet")
    tiny.unet(levels=1, mid_block_type=None, cross_attention_dim=128).save_pretrained(str(folder / "unet"))
    return folder


@pytest.fixture(scope="module")
def export(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    assert main(["export", *SIZE, "--model", str(model), "--ratio", "0.6", "--output", str(folder)]) == 0
    return folder


def test_the_files_describe_the_export(export, model):
    assert {path.name for path in export.iterdir()} == FILES
    assert ToMeConfig.load(export / "tome.json") == ToMeConfig(0.6)
    metadata = json.loads((export / "export.json").read_text())
    assert (metadata["model"], metadata["height"], metadata["width"], metadata["rows"]) == (model.name, 64, 64, None)
    assert [part["name"] for part in metadata["components"]] == ["text_encoder", "unet", "vae_encoder", "vae_decoder"]
    for part in metadata["components"]:
        assert part["difference"] <= metadata["tolerance"] == 1e-4
        assert all((export / part["name"] / name).stat().st_size > 0 for name in part["files"])
    index = json.loads((export / "model_index.json").read_text())
    assert index["_class_name"] == "PaddleInferStableDiffusionPipeline"


def test_the_deploy_pipeline_generates_the_same_image(export, model):
    pipe, deployed = load_pipeline(find_model(str(model))), load_exported(export)
    common = dict(height=64, width=64, num_inference_steps=2, guidance_scale=3.0, output_type="np")
    noise = make_initial_noise(pipe, 64, 64, seed=0)
    image = np.asarray(deployed(PROMPT, latents=noise, parse_prompt_type="raw", **common).images)
    unmerged = np.asarray(pipe(PROMPT, latents=noise, **common).images)
    apply_tome(pipe, 0.6)
    assert np.abs(image - np.asarray(pipe(PROMPT, latents=noise, **common).images)).max() <= 1e-4
    assert np.abs(image - unmerged).max() > 1e-3


def test_the_exported_size_is_the_default_and_the_only_one(export, tmp_path):
    deployed = load_exported(export)
    for size in ({}, dict(height=64), dict(height=64, width=64)):
        assert deployed(PROMPT, num_inference_steps=1, **size).images[0].size == (64, 64)
    with pytest.raises(ToMeValueError, match=r"takes sample of shape \[any, 4, 8, 8\]; got \[2, 4, 12, 8\]"):
        deployed(PROMPT, num_inference_steps=1, height=96)
    with pytest.raises(ToMeValueError, match=r"takes sample of shape \[any, 4, 8, 8\]; got \[2, 4, 8, 16\]"):
        deployed(PROMPT, latents=tiny.latent(1, 8, 16), num_inference_steps=1)
    other = Path(shutil.copytree(export, tmp_path / "exported"))
    (other / "model_index.json").unlink()
    with pytest.raises(ToMeValueError, match="holds no complete export"):
        load_exported(other)


def test_the_deploy_pipelines_may_synchronize_on_a_cpu_and_nobody_another_device(export):
    load_exported(export)
    paddle.device.synchronize()
    if not paddle.is_compiled_with_cuda():
        with pytest.raises((ValueError, RuntimeError, OSError)):
            paddle.device.synchronize("gpu:0")
