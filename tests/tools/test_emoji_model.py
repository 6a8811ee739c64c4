"""The emoji model, which tests and benchmarks judge by: it shows its prompts, and merging changes little."""

from __future__ import annotations

import runpy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tiny
from models import EMOJI, load_emoji
from ppdiffusers_tome.api import use_tome
from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
from ppdiffusers_tome.tools.generation.sampling import generate_batch, get_native_size
from ppdiffusers_tome.tuning.images import psnr

features = SimpleNamespace(**runpy.run_path(str(tiny.ROOT / "examples/train_demo_models/emoji_features.py")))
PROMPTS = ("face", "flag", "digit", "arrow")


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = load_emoji()
    pipe.set_progress_bar_config(disable=True)
    enable_chunked_attention(pipe)
    return pipe


def generate(pipe: Any, guidance: float) -> np.ndarray:
    images = generate_batch(
        pipe, PROMPTS, height=128, width=128, seeds=range(len(PROMPTS)), steps=12, guidance_scale=guidance
    )
    return np.stack([np.asarray(image) for image in images])


@pytest.fixture(scope="module")
def guided(pipe: Any) -> np.ndarray:
    return generate(pipe, 5.0)


def find_classes(images: np.ndarray) -> list[str]:
    """Return the class whose mean picture is nearest to each image."""
    with np.load(EMOJI.with_name("emoji_classes.npz")) as means:
        distances = features.compute_distances(features.compute_features(images), means["features"].astype(np.float32))
        return [str(name) for name in means["classes"][distances.argmin(1)]]


def test_emoji_model_attends_to_1024_tokens_and_weighs_at_most_12_mb(pipe: Any) -> None:
    assert get_native_size(pipe) == (128, 128)
    assert pipe.unet.config.sample_size**2 == 1024
    with use_tome(pipe, 0.5):
        assert pipe.tome.blocks == {"unet": 2}
    assert sum(file.stat().st_size for file in EMOJI.rglob("*.safetensors")) <= 12e6


def test_emoji_show_their_prompts(guided: np.ndarray) -> None:
    assert find_classes(guided) == list(PROMPTS)


def test_emoji_merged_differ_little_and_do_differ(pipe: Any, guided: np.ndarray) -> None:
    with use_tome(pipe, 0.5):
        merged = generate(pipe, 5.0)
    assert find_classes(merged) == list(PROMPTS)
    similarities = [psnr(a, b) for a, b in zip(guided, merged, strict=True)]
    assert min(similarities) > 20
    assert max(similarities) < 60
