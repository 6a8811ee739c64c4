"""``export``: its files, and that they generate what the model does, in ppdiffusers' deploy pipelines."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
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
    for height in (96, 0):
        with pytest.raises(ToMeValueError, match="this pipeline was exported for height=64, width=64 alone"):
            deployed(PROMPT, num_inference_steps=1, height=height)
    with pytest.raises(ToMeValueError, match=r"takes sample of shape \[any, 4, 8, 8\]; got \[2, 4, 8, 16\]"):
        deployed(PROMPT, latents=tiny.latent(1, 8, 16), num_inference_steps=1)
    # As ppdiffusers' own scripts write it, without a description.
    other = Path(shutil.copytree(export, tmp_path / "exported"))
    (other / "export.json").write_text(json.dumps({"files": []}))
    with pytest.raises(ToMeValueError, match=r"export\.json describes no export; export the pipeline again"):
        load_exported(other)
    (other / "export.json").unlink()
    assert load_exported(other)(PROMPT, height=64, width=64, num_inference_steps=1).images[0].size == (64, 64)


def test_paddle_waits_as_before_but_while_a_call_runs_on_a_cpu(export):
    """The deploy pipelines call ``paddle.device.synchronize()``, which Paddle refuses on a CPU."""
    synchronize, (first, second) = paddle.device.synchronize, (load_exported(export), load_exported(export))
    assert synchronize.__module__ == "paddle.device"
    first_runs, first_ended = threading.Event(), threading.Event()

    def end_after_the_first(*_: object) -> None:
        first_runs.set()
        assert first_ended.wait(60)

    with ThreadPoolExecutor() as pool:
        later = pool.submit(second, PROMPT, num_inference_steps=1, callback=end_after_the_first)
        assert first_runs.wait(60)
        first(PROMPT, num_inference_steps=1)
        first_ended.set()
        assert later.result().images[0].size == (64, 64)
    assert paddle.device.synchronize is synchronize

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first(PROMPT, num_inference_steps=1, callback=fail)
    assert paddle.device.synchronize is synchronize
