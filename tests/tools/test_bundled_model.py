"""The bundled model: whole, small, in ppdiffusers' format, and showing what is asked."""

from __future__ import annotations

import hashlib

import numpy as np
import paddle
import pytest
from ppdiffusers import ControlNetModel, StableDiffusionPipeline

from ppdiffusers_tome.tools.bundled import MODEL, checker, scenes

DEMO = MODEL.parent


@pytest.mark.parametrize("folder", ["model", "controlnet"])
def test_files_match_their_sums(folder: str) -> None:
    sums = dict(reversed(line.split("  ")) for line in (DEMO / folder / "SHA256SUMS").read_text().splitlines())
    files = {str(p.relative_to(DEMO / folder)) for p in (DEMO / folder).rglob("*") if p.is_file()} - {"SHA256SUMS"}
    assert files == set(sums)
    for name, expected in sums.items():
        assert hashlib.sha256((DEMO / folder / name).read_bytes()).hexdigest() == expected, name


def test_files_are_small_and_hold_no_pickle() -> None:
    files = [path for folder in ("model", "controlnet") for path in (DEMO / folder).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 25_000_000
    assert {path.suffix for path in files} <= {".json", ".txt", ".safetensors", ""}


def test_files_name_no_place_they_came_from() -> None:
    for path in DEMO.rglob("*.json"):
        assert '": "/' not in path.read_text(), path


@pytest.fixture(scope="module")
def pipe() -> StableDiffusionPipeline:
    pipe = StableDiffusionPipeline.from_pretrained(str(DEMO / "model"))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_pictures_are_512_with_4096_tokens_at_the_top(pipe: StableDiffusionPipeline) -> None:
    assert pipe.unet.config.sample_size * pipe.vae_scale_factor == 512
    assert pipe.unet.config.sample_size**2 == 4096
    assert pipe.apply_tome(0.5).tome.blocks == {"unet": 3}
    pipe.remove_tome()


def test_weights_are_used_in_float32(pipe: StableDiffusionPipeline) -> None:
    layers = (pipe.unet, pipe.vae, pipe.text_encoder, ControlNetModel.from_pretrained(str(DEMO / "controlnet")))
    assert {p.dtype for layer in layers for p in layer.parameters()} == {paddle.float32}


@pytest.mark.parametrize(("count", "least"), [(1, 1), pytest.param(3, 2, marks=pytest.mark.sweep)])
def test_pictures_have_the_asked_shapes_colours_and_background(
    pipe: StableDiffusionPipeline, count: int, least: int
) -> None:
    """Held-out prompts, merged: enough to notice a broken model, scheduler or merge."""
    pipe.apply_tome(ratio=0.5)
    showing = 0
    for scene in scenes.held_out_scenes(count):
        paddle.seed(0)
        picture = pipe(scene.prompt, height=512, width=512, num_inference_steps=10, guidance_scale=3.0).images[0]
        adherence = checker.check(np.asarray(picture), scene)
        showing += adherence.shapes and adherence.background
    pipe.remove_tome()
    assert showing >= least
