"""The scripts that train, export and judge the small models run from the repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from photographs import SUBJECTS
from safetensors.numpy import load_file

import tiny
from environment import python_path
from ppdiffusers_tome.tools.generation.loading import load_pipeline
from ppdiffusers_tome.tools.generation.models import find_model

SCRIPTS = tiny.ROOT / "examples" / "train_demo_models"

pytestmark = pytest.mark.once


def run_script(name: str, *arguments: object) -> str:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": python_path(tiny.ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dit_folder(tmp_path_factory):
    """Export a tiny DiT that looks like the training's: in diffusers' format."""
    folder = tmp_path_factory.mktemp("trained")
    tiny.dit(num_embeds_ada_norm=1000, out_channels=8).save_pretrained(str(folder / "dit"), to_diffusers=True)
    tiny.vae().save_pretrained(str(folder / "vae"), to_diffusers=True)
    tiny.scheduler().save_pretrained(str(folder / "dit" / "scheduler"))
    run_script("export", "--vae", folder / "vae", "--dit", folder / "dit", "--output", folder)
    return folder / "dit"


def test_exported_dit_keeps_its_labels_weights_and_sums(dit_folder):
    pipe = load_pipeline(find_model(str(dit_folder)))
    assert pipe.labels == {subject.name: number for number, subject in enumerate(SUBJECTS)}
    stored = load_file(dit_folder / "transformer" / "diffusion_paddle_model.safetensors")
    assert {value.dtype for value in stored.values()} == {np.dtype("float16")}
    weights = tiny.dit(num_embeds_ada_norm=1000, out_channels=8).state_dict()
    for name, value in pipe.transformer.state_dict().items():
        np.testing.assert_allclose(value.numpy(), weights[name].numpy(), atol=2e-3)
    for line in (dit_folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((dit_folder / name).read_bytes()).hexdigest() == digest


def test_images_are_judged(dit_folder, tmp_path):
    arguments = ("--model", dit_folder, "--count", 1, "--ratios", 0, "--steps", 1)
    output = run_script("evaluate", "--output", tmp_path, *arguments)
    assert output.splitlines()[-1].startswith("| 0.0 | 1 | 0.000 |")
    assert [path.name for path in tmp_path.glob("*.png")] == ["images-000-0.png"]
