"""The examples run as a user would run them, as do the scripts that train, export and judge the small models."""

import hashlib
import json
import os
import re
import runpy
import sys

import numpy as np
import paddle
import ppdiffusers
import pytest
from photographs import SUBJECTS
from PIL import Image
from safetensors.numpy import load_file
from scipy.linalg import sqrtm

import tiny
from environment import python_path, run_python
from examples.helpers import EXAMPLES, load_module, run_example
from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.tools.generation.loading import load_pipeline
from ppdiffusers_tome.tools.generation.models import find_model
from tools.cli.helpers import PROMPT, compare, pixels_of

SCORES = load_module("score_images", EXAMPLES / "quality" / "score_images.py")


def test_examples_run_offline(tmp_path, photo):
    output = tmp_path / "image.png"
    for name, given in (("stable_diffusion", []), ("controlnet_canny", ["--image", photo])):
        arguments = ["--offline", "--size", "64", "--steps", "2", "--output", output]
        assert "unet" in run_example(name, *arguments, *given)
        assert pixels_of(output).shape == (64, 64, 3)
        output.unlink()
    assert pixels_of(tmp_path / "image-unmerged.png").shape == (64, 64, 3)


def test_examples_refuse_what_they_cannot_use_in_a_sentence(tmp_path, photo, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "half.png").write_bytes(photo.read_bytes()[: photo.stat().st_size // 2])
    begin, data, end = photo.read_bytes().partition(b"IDAT")
    # A chunk that ends too early, for which Pillow raises a SyntaxError.
    (tmp_path / "chunk.png").write_bytes(begin[:-4] + (20).to_bytes(4, "big") + data + end)
    for name, arguments, words in (
        ("stable_diffusion", ["--output", "x.gif"], "--output x.gif: the size must be"),
        ("controlnet_canny", ["--image", "nosuch.png"], "nosuch.png cannot be read as an image (No such file"),
        ("controlnet_canny", ["--image", "chunk.png"], "chunk.png cannot be read as an image (broken PNG file"),
        ("train_lora", ["--images", "photos"], "half.png cannot be read as an image ("),
        ("train_lora", ["--images", "nosuch"], "--images nosuch is no folder"),
        ("train_lora", ["--images", "empty"], "--images empty holds no image"),
        ("train_lora", ["--merged-part", "1.5"], "--merged-part must be from 0 to 1, not 1.5"),
        ("train_lora", ["--output", "chunk.png"], "--output chunk.png is a file; give a folder"),
        ("train_lora", ["--rank", "0"], "--rank must be 1 or more"),
        ("quality/score_images", [".", "--clip", "."], ". holds no results of compare ([Errno 2]"),
        ("wan_video", ["--frames", "80"], "--frames 80 must be a multiple of 4 plus 1"),
        ("wan_video", ["--merge-frames", "-1"], "--merge-frames -1 must be 1 or more"),
        ("wan_video", ["--output", "x.gif"], "--output x.gif must be an .mp4 file"),
    ):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises((SystemExit, ToMeValueError)) as refused:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        # What argparse refuses is printed already, and then its exit code is 2.
        assert words in capsys.readouterr().err + str(refused.value)


def test_arguments_are_refused_before_paddle_loads_and_in_commands_in_one_line(tmp_path):
    (tmp_path / "paddle.py").write_text("raise SystemExit('Paddle was imported')")
    path = f"{tmp_path}{os.pathsep}{python_path(tiny.ROOT)}"
    for line in (
        f"{EXAMPLES}/stable_diffusion.py --size 300", f"{EXAMPLES}/controlnet_canny.py --steps 0",
        f"{EXAMPLES}/flux.py --size 9", f"{EXAMPLES}/wan_video.py --frames -3", f"{EXAMPLES}/train_lora.py --steps 0",
        "-m ppdiffusers_tome generate --prompt x --ratio 2",
    ):  # fmt: skip
        done = run_python(*line.split(), PYTHONPATH=path)
        assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("ppdiffusers-tome: error: --ratio 2 must be")
    assert len(done.stderr.splitlines()) == 1


def test_a_lora_trains_with_merging_and_loads(tmp_path, photo):
    arguments = ["--size", "64", "--steps", "2", "--merged-part", "0.5"]
    printed = run_example("train_lora", *arguments, "--images", photo.parent, "--output", tmp_path)
    assert re.findall(r"step (\d), (\w+)", printed) == [("1", "merged"), ("2", "unmerged")]
    pipe = ppdiffusers.StableDiffusionPipeline.from_pretrained(str(tiny.PHOTOGRAPHS))
    pipe.load_lora_weights(str(tmp_path), from_diffusers=False)
    trained = [layer.lora_layer.up.weight for layer in pipe.unet.sublayers() if getattr(layer, "lora_layer", None)]
    assert len(trained) == 80  # 10 blocks, two attentions of four layers
    assert sum(float(weight.abs().max()) > 0 for weight in trained) > 70  # no query matters where there is one token


@pytest.fixture(scope="module")
def dit_folder(tmp_path_factory):
    """Export a tiny DiT that looks like the training's: in diffusers' format."""
    folder = tmp_path_factory.mktemp("trained")
    tiny.dit(num_embeds_ada_norm=1000, out_channels=8).save_pretrained(str(folder / "dit"), to_diffusers=True)
    tiny.vae().save_pretrained(str(folder / "vae"), to_diffusers=True)
    tiny.scheduler().save_pretrained(str(folder / "dit" / "scheduler"))
    given = ["--vae", folder / "vae", "--dit", folder / "dit", "--output", folder]
    run_example("train_demo_models/export", *given)
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
    output = run_example("train_demo_models/evaluate", "--output", tmp_path, *arguments)
    assert output.splitlines()[-1].startswith("| 0.0 | 1 | 0.000 |")
    assert [path.name for path in tmp_path.glob("*.png")] == ["images-000-0.png"]


class MeanColor(paddle.nn.Layer):
    """Stands in for Inception: as many features, all of the mean color."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(3, 2048)

    def forward(self, images: paddle.Tensor) -> paddle.Tensor:
        return self.linear(images.mean(axis=[2, 3]))


def test_frechet_distance_is_that_of_the_matrix_root():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(50, 6)), rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6)) + 1
    covariances = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    root = sqrtm(covariances[0] @ covariances[1]).real
    means = ((first.mean(0) - second.mean(0)) ** 2).sum()
    expected = means + np.trace(covariances[0] + covariances[1] - 2 * root)
    assert SCORES.compute_frechet_distance(first, second) == pytest.approx(expected)
    images = np.array([[3.0, 0], [0, 2.0], [-1.0, 0]])
    prompts = np.array([[1.0, 0], [1.0, 1.0], [1.0, 0]])
    assert SCORES.compute_clip_score(images, prompts) == pytest.approx(100 * (1 + 2**-0.5) / 3)


def test_saved_images_are_scored(tmp_path, monkeypatch):
    folder, network = tmp_path / "compared", MeanColor()
    assert compare(folder, "--prompt", PROMPT, "--seeds", "0", "1", "--ratios", "0.5") == 0
    network.eval()
    spec = paddle.static.InputSpec([None, 3, 299, 299], "float32")
    paddle.jit.save(network, str(tmp_path / "inception"), input_spec=[spec])
    given = ["score_images.py", str(folder), "--inception", str(tmp_path / "inception"), "--real"]
    monkeypatch.setattr(sys, "argv", [*given, str(next((folder / "images").glob("unmerged*")))])
    SCORES.main()
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["unmerged"]["FID"] == pytest.approx(0, abs=1e-9)
    assert scores["ratio 0.5"]["FID"] > 1e-9
    (tmp_path / "scans").mkdir()
    for number in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / "scans" / f"{number}.tif")
    monkeypatch.setattr(sys, "argv", [*given, str(tmp_path / "scans")])
    with pytest.raises(SystemExit, match=r"scans has 0 images \(\.png, \.jpg, .*at least 2"):
        SCORES.main()
