"""The example that scores the images of a comparison."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from PIL import Image

from ppdiffusers_tome.tools.cli.program import main
from tools.cli.conftest import PROMPT, SMALL


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples" / "quality" / "score_images.py"
    spec = importlib.util.spec_from_file_location("score_images", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MeanColor(paddle.nn.Layer):
    """Stands in for Inception: as many features, all of the mean color."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(3, 2048)

    def forward(self, images: paddle.Tensor) -> paddle.Tensor:
        return self.linear(images.mean(axis=[2, 3]))


def test_frechet_distance_is_that_of_the_matrix_root(example):
    from scipy.linalg import sqrtm

    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(50, 6)), rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6)) + 1
    covariances = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    root = sqrtm(covariances[0] @ covariances[1]).real
    means = ((first.mean(0) - second.mean(0)) ** 2).sum()
    expected = means + np.trace(covariances[0] + covariances[1] - 2 * root)
    assert example.compute_frechet_distance(first, second) == pytest.approx(expected)
    images = np.array([[3.0, 0], [0, 2.0], [-1.0, 0]])
    prompts = np.array([[1.0, 0], [1.0, 1.0], [1.0, 0]])
    assert example.compute_clip_score(images, prompts) == pytest.approx(100 * (1 + 2**-0.5) / 3)


def test_saved_images_are_scored(example, tmp_path, monkeypatch):
    folder, network = tmp_path / "compared", MeanColor()
    arguments = ["--prompt", PROMPT, "--seeds", "0", "1", "--ratios", "0.5", "--output", str(folder)]
    assert main(["compare", *SMALL, *arguments]) == 0
    network.eval()
    spec = paddle.static.InputSpec([None, 3, 299, 299], "float32")
    paddle.jit.save(network, str(tmp_path / "inception"), input_spec=[spec])
    options = ["--inception", str(tmp_path / "inception"), "--real", str(next((folder / "images").glob("unmerged*")))]
    monkeypatch.setattr(sys, "argv", ["score_images.py", str(folder), *options])
    example.main()
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["unmerged"]["FID"] == pytest.approx(0, abs=1e-9)
    assert scores["ratio 0.5"]["FID"] > 1e-9
    (tmp_path / "scans").mkdir()
    for number in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / "scans" / f"{number}.tif")
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-1], str(tmp_path / "scans")])
    with pytest.raises(SystemExit, match=r"scans has 0 images \(\.png, \.jpg, .*at least 2"):
        example.main()
