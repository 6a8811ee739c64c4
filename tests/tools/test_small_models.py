"""The small models: whole, small, in ppdiffusers' format, and showing what a prompt asks for."""

import hashlib

import emoji
import numpy as np
import paddle
import pytest
import recognition
from photographs import SUBJECTS, prompt_of, square_image
from PIL import Image
from ppdiffusers import DiTPipeline, StableDiffusionPipeline

import tiny
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.edges import detect_edges
from ppdiffusers_tome.tools.generation.loading import load_pipeline
from ppdiffusers_tome.tools.generation.models import ModelSource, find_controlnet, find_model, list_small_models
from ppdiffusers_tome.tools.generation.sampling import generate_image
from tools.cli.helpers import heard


@pytest.mark.parametrize(
    ("load", "part", "tokens", "blocks"),
    [
        (lambda: StableDiffusionPipeline.from_pretrained(str(tiny.PHOTOGRAPHS)), "unet", 4096, 3),
        (lambda: DiTPipeline.from_pretrained(str(find_model("dit").folder)), "transformer", 1024, 6),
    ],
    ids=["photographs", "dit"],
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
    arguments = ["--model", "emoji", "--cache", "0.2", "--ratio", "0", "--scheduler", "ddim", "--output", str(tmp_path)]
    assert main(["generate", *arguments, "--prompt", "face", "--prompt", "clock"]) == 0
    assert heard(capsys.readouterr().err) == []
    face, clock = (np.asarray(Image.open(path)).astype(float) for path in sorted(tmp_path.glob("*.png")))
    assert face.shape == clock.shape == (128, 128, 3)
    assert face[..., 0].mean() > face[..., 2].mean() + 60
    assert abs(clock[..., 0].mean() - clock[..., 2].mean()) < 20 < np.ptp(clock) / 5


@pytest.mark.parametrize("model", ["photographs", "dit"])
@pytest.mark.parametrize(
    "subjects", [SUBJECTS[2:3], pytest.param(SUBJECTS, marks=pytest.mark.sweep)], ids=["one", "all"]
)
def test_images_show_the_asked_photograph_merged(model, subjects, tmp_path, capsys):
    asked = {"photographs": prompt_of, "dit": lambda subject: subject.name}[model]
    prompts = [word for subject in subjects for word in ("--prompt", asked(subject))]
    assert main(["generate", "--model", model, *prompts, "--ratio", "0.5", "--output", str(tmp_path)]) == 0
    assert heard(capsys.readouterr().err) == []
    shown = {path.name: recognition.nearest_subject(np.asarray(Image.open(path))) for path in tmp_path.glob("*.png")}
    assert [shown[name] for name in sorted(shown)] == list(subjects)


@pytest.mark.parametrize(
    "subject", [SUBJECTS[0], *(pytest.param(subject, marks=pytest.mark.sweep) for subject in SUBJECTS[1:])],
    ids=lambda subject: subject.name,
)  # fmt: skip
def test_edges_alone_tell_the_controlnet_what_to_generate(subject):
    """Without a word, merged: nothing but the edges names the subject."""
    pipe = load_pipeline(find_model("photographs"), find_controlnet("controlnet"))
    pipe.set_progress_bar_config(disable=True)
    pipe.apply_tome(0.5)
    edges = detect_edges(square_image(subject, 512))
    image = generate_image(pipe, "", height=512, width=512, seed=0, steps=6, guidance_scale=1.5, edges=edges)
    assert recognition.nearest_subject(np.asarray(image)) == subject


@pytest.mark.parametrize("name", ["photographs", "emoji"])
def test_images_begin_from_an_image(name):
    """The encoder gives latents, not noise: img2img that changes little keeps the image."""
    pipe = load_pipeline(find_model(name))
    image = square_image(SUBJECTS[0], 128)
    pixels = paddle.to_tensor(np.asarray(image, "float32").transpose(2, 0, 1)[None] / 127.5 - 1)
    with paddle.no_grad():
        latents = pipe.vae.encode(pixels).latent_dist
        decoded = pipe.vae.decode(latents.sample()).sample
    assert float(latents.std.max()) < 1e-3 < float(latents.mean.std())
    assert float((decoded - pixels).abs().mean()) < 0.15


@pytest.mark.parametrize(("prompts", "subjects"), [
    (("a photo of a cat", "a photo of a cup"), ("cat", "cup")), (("a cat", "a cat face"), ("cat", "cat face")),
    (("a cat",), ("cat",)), ((), ()),
])  # fmt: skip
def test_subjects_are_what_prompts_end_with(prompts, subjects):
    assert ModelSource("folder", prompts=prompts).subjects == subjects


@pytest.mark.parametrize(("text", "steps"), [
    ('{"steps": 7, "title": "x", "name": "x"}', 7), ('{"controlnet": "gone"}', 20),
])  # fmt: skip
def test_a_folder_may_say_more_or_have_no_controlnet(text, steps, tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "demonstration.json").write_text(text)
    assert find_model(str(tmp_path)) == ModelSource(str(tmp_path), tmp_path, steps=steps)


def test_a_folder_comes_before_a_small_model_and_saved_again_is_another(tmp_path, monkeypatch):
    for name in ("controlnet", "photographs"):
        (tmp_path / name).mkdir()
    (tmp_path / "controlnet" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    before = find_controlnet("controlnet")
    assert str(before.folder) == "controlnet"
    assert find_model(None).prompts, "a folder that holds no model is none"
    assert before.describe() == find_controlnet("controlnet").describe()
    (tmp_path / "controlnet" / "config.json").touch()
    assert before.describe() != find_controlnet("controlnet").describe()


def test_folders_say_what_the_models_were_taught_and_have_their_sums():
    assert find_model("photographs").prompts == tuple(map(prompt_of, SUBJECTS))
    assert find_model("photographs").subjects == tuple(subject.words for subject in SUBJECTS)
    assert find_model("dit").prompts == tuple(subject.name for subject in SUBJECTS)
    assert sorted(find_model("emoji").prompts) == sorted(emoji.CLASSES)
    for folder in (*list_small_models().values(), *(tiny.ROOT / "tests" / "models").iterdir()):
        listed = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
        paths = {path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file()}
        assert listed.keys() == {path.relative_to(folder).as_posix() for path in paths} - {"SHA256SUMS"}
        for name, digest in listed.items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
