"""The bundled models: whole, small, in ppdiffusers' format, and showing what a prompt asks for."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from PIL import Image
from ppdiffusers import StableDiffusionPipeline

from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.demo_model import MODEL, load_dit
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, prompt_of, square_image, subject_of
from ppdiffusers_tome.tools.generation.edges import detect_edges
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_controlnet, find_model
from ppdiffusers_tome.tools.generation.sampling import generate_image
from tools.cli.conftest import recognition


@pytest.mark.parametrize(
    ("load", "part", "tokens", "blocks"),
    [
        (lambda: StableDiffusionPipeline.from_pretrained(str(MODEL)), "unet", 4096, 3),
        (load_dit, "transformer", 1024, 6),
    ],
    ids=["bundled", "bundled-dit"],
)
def test_images_are_512_and_weights_float32(load, part, tokens, blocks):
    pipe = load()
    config = getattr(pipe, part).config
    assert config.sample_size * 8 == 512
    assert (config.sample_size // (getattr(config, "patch_size", None) or 1)) ** 2 == tokens
    layers = [layer for layer in pipe.components.values() if isinstance(layer, paddle.nn.Layer)]
    assert {weight.dtype for layer in layers for weight in layer.parameters()} == {paddle.float32}
    assert pipe.apply_tome(0.5).tome.blocks == {part: blocks}
    if part == "transformer":
        assert [pipe.labels[subject.name] for subject in SUBJECTS] == list(range(len(SUBJECTS)))


def test_model_of_emoji_shows_what_is_asked(tmp_path, capsys):
    """A face is yellow and a clock grey, with the settings of the command line."""
    arguments = ["--model", "bundled-emoji", "--cache", "0.2", "--ratio", "0", "--output", str(tmp_path)]
    assert main(["generate", *arguments, "--prompt", "face", "--prompt", "clock"]) == 0
    assert capsys.readouterr().err == ""
    face, clock = (np.asarray(Image.open(path)).astype(float) for path in sorted(tmp_path.glob("*.png")))
    assert face.shape == clock.shape == (128, 128, 3)
    assert face[..., 0].mean() > face[..., 2].mean() + 60
    assert abs(clock[..., 0].mean() - clock[..., 2].mean()) < 20 < np.ptp(clock) / 5


@pytest.mark.parametrize("model", ["bundled", "bundled-dit"])
@pytest.mark.parametrize(
    "subjects", [SUBJECTS[1:3], pytest.param(SUBJECTS, marks=pytest.mark.sweep)], ids=["two", "all"]
)
def test_images_show_the_asked_photograph_merged(model, subjects, tmp_path, capsys):
    """With the settings of the command line, as a user gets them."""
    prompts = [word for subject in subjects for word in ("--prompt", prompt_of(subject))]
    assert main(["generate", "--model", model, *prompts, "--ratio", "0.5", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    shown = {path.name: recognition.nearest_subject(np.asarray(Image.open(path))) for path in tmp_path.glob("*.png")}
    assert [shown[name] for name in sorted(shown)] == list(subjects)


@pytest.mark.parametrize(
    "subject", [SUBJECTS[0], *(pytest.param(subject, marks=pytest.mark.sweep) for subject in SUBJECTS[1:])],
    ids=lambda subject: subject.name,
)  # fmt: skip
def test_edges_alone_tell_the_controlnet_what_to_generate(subject):
    """Without a word, merged: nothing but the edges names the subject."""
    pipe = load_pipeline(find_model("bundled"), find_controlnet("bundled"))
    pipe.set_progress_bar_config(disable=True)
    pipe.apply_tome(0.5)
    enable_chunked_attention(pipe)
    edges = detect_edges(square_image(subject, 512))
    image = generate_image(pipe, "", height=512, width=512, seed=0, steps=10, guidance_scale=1.5, edges=edges)
    assert recognition.nearest_subject(np.asarray(image)) == subject


def test_prompts_name_subjects_by_a_noun():
    assert [subject_of(prompt_of(subject)) for subject in SUBJECTS] == list(SUBJECTS)
    assert subject_of("a CAT below a rocket") is SUBJECTS[1]
    assert subject_of("concatenated coffeehouses") is None
