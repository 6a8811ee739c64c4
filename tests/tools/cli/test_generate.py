"""``generate``: its files, what is in them, and what they depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import paddle
import pytest

import ppdiffusers_tome
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.demo_model.recognition import subject_similarities
from ppdiffusers_tome.tools.generation.model_sources import find_controlnet, find_model
from ppdiffusers_tome.tools.generation.schedulers import SCHEDULERS
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.conftest import PROMPT, SMALL, heard, pixels_of

ROCKET = "a photo of a rocket"


def test_files_are_named_by_number_and_prompt(generate, capsys):
    files = generate(prompts=(PROMPT, ROCKET))
    assert [file.name for file in files] == [
        "0001-a-photo-of-a-cat.png",
        "0002-a-photo-of-a-rocket.png",
    ]
    assert [pixels_of(file).shape for file in files] == [(64, 64, 3)] * 2
    captured = capsys.readouterr()
    assert heard(captured.err) == []
    assert "s per image (median of 2) on " in captured.out
    assert "MiB with decoding" in captured.out


def test_settings_come_back_from_the_picture(generate):
    given = ("--seed", "7", "--ratio", "0.25", "--negative-prompt", ROCKET, "--scheduler", "euler", "--no-rand")
    (file,) = generate(*given)
    settings = read_settings(file)
    expected = dict(
        prompt=PROMPT, negative_prompt=ROCKET, seed=7, ratio=0.25, model="bundled", controlnet=None, height=64,
        width=64, steps=1, guidance_scale=1.5, scheduler="EulerDiscreteScheduler", dtype="float32", xformers=False,
        chunked_attention=False,
    )  # fmt: skip
    assert {name: settings[name] for name in expected} == expected
    assert settings["tome"] == ppdiffusers_tome.ToMeConfig(ratio=0.25, use_rand=False).to_dict()
    assert settings["versions"]["ppdiffusers_tome"] == ppdiffusers_tome.__version__
    assert settings["versions"]["paddle"] == paddle.__version__


def test_cheaper_matching_is_asked_for_and_recorded(generate):
    (file,) = generate("--tile", "4", "--reuse-steps", "2", "--reuse-blocks")
    asked = ppdiffusers_tome.ToMeConfig(tile=4, reuse_steps=2, reuse_blocks=True)
    assert read_settings(file)["tome"] == asked.to_dict()
    (exact,) = generate(folder="exact")
    assert not np.array_equal(pixels_of(file), pixels_of(exact))


def test_same_seed_gives_the_same_bytes(generate):
    first, again = generate(folder="a")[0], generate(folder="b")[0]
    assert first.read_bytes() == again.read_bytes()
    other = generate("--seed", "1", folder="c")[0]
    assert not np.array_equal(pixels_of(first), pixels_of(other))


@pytest.mark.once
@pytest.mark.parametrize("scheduler", ["ddim", "euler-a"])
def test_picture_i_has_seed_plus_i_whatever_else_is_drawn(generate, scheduler):
    several = generate("--seed", "3", "--scheduler", scheduler, prompts=(ROCKET, PROMPT), folder="a")
    (alone,) = generate("--seed", "4", "--scheduler", scheduler, folder="b")
    np.testing.assert_array_equal(pixels_of(several[1]), pixels_of(alone))


def test_ratio_0_equals_the_plain_pipeline(generate):
    (file,) = generate("--ratio", "0", "--steps", "2")
    from ppdiffusers import StableDiffusionPipeline

    from ppdiffusers_tome.tools.generation.sampling import make_initial_noise

    pipe = StableDiffusionPipeline.from_pretrained(str(find_model("bundled").folder))
    noise = make_initial_noise(pipe, 64, 64, seed=0)
    plain = pipe(PROMPT, height=64, width=64, num_inference_steps=2, guidance_scale=1.5, latents=noise).images[0]
    np.testing.assert_array_equal(pixels_of(file), np.asarray(plain))
    assert read_settings(file)["tome"] is None


def test_merging_changes_the_picture_and_little(generate):
    plain = pixels_of(generate("--ratio", "0", "--steps", "2", folder="a")[0]).astype(float)
    merged = pixels_of(generate("--ratio", "0.5", "--steps", "2", folder="b")[0]).astype(float)
    assert 0 < np.abs(plain - merged).mean() < 20


@pytest.mark.skipif(paddle.get_device() != "cpu", reason="on a GPU the default processor is no plain one")
@pytest.mark.parametrize("ratio", ["0", "0.5"])
def test_chunked_attention_gives_the_same_picture(generate, photo, ratio, monkeypatch):
    from ppdiffusers_tome import ChunkedAttnProcessor
    from ppdiffusers_tome.tools.generation import sampling

    processors, draw = [], sampling.generate_image

    def noted(pipe, *arguments, **keywords):
        held = (*pipe.unet.attn_processors.values(), *pipe.controlnet.attn_processors.values())
        processors.append({type(processor) for processor in held})
        return draw(pipe, *arguments, **keywords)

    monkeypatch.setattr(sampling, "generate_image", noted)
    given = ("--image", str(photo), "--ratio", ratio)
    (plain,), (chunked,) = generate(*given, folder="a"), generate(*given, "--chunked-attention", folder="b")
    assert np.abs(pixels_of(plain).astype(int) - pixels_of(chunked)).max() <= 1
    assert ChunkedAttnProcessor not in processors[0]
    assert processors[1] == {ChunkedAttnProcessor}
    assert read_settings(chunked)["chunked_attention"] is True


def test_prompt_changes_the_picture(generate):
    cat, rocket = generate(folder="a")[0], generate(prompts=(ROCKET,), folder="b")[0]
    assert not np.array_equal(pixels_of(cat), pixels_of(rocket))


def test_existing_file_is_replaced_when_asked(generate):
    (file,) = generate()
    file.write_bytes(b"old")
    (file,) = generate("--overwrite")
    assert read_settings(file)["prompt"] == PROMPT


CLEAN = 0.8  # a similarity that a rocket in noise, recognised as one, does not have
NATIVE = ("--height", "512", "--width", "512", "--steps", "6", "--guidance-scale", "1")


@pytest.mark.once
@pytest.mark.parametrize(
    "scheduler",
    [pytest.param(name, marks=[pytest.mark.sweep] * (name not in ("ddim", "euler-a", "pndm"))) for name in SCHEDULERS],
)
def test_every_scheduler_draws_the_photograph(generate, scheduler):
    (file,) = generate(*NATIVE, "--scheduler", scheduler, prompts=(ROCKET,))
    assert read_settings(file)["scheduler"] == SCHEDULERS[scheduler]
    assert subject_similarities(pixels_of(file))["rocket"] > CLEAN


def test_wrong_prediction_type_would_show(generate, monkeypatch):
    from ppdiffusers_tome.tools.generation import schedulers

    monkeypatch.setitem(schedulers._EXTRA, "ddim", {"prediction_type": "epsilon"})
    (file,) = generate(*NATIVE, "--scheduler", "ddim", prompts=(ROCKET,))
    assert subject_similarities(pixels_of(file))["rocket"] < CLEAN


def test_native_size_is_the_models():
    from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
    from ppdiffusers_tome.tools.generation.sampling import get_native_size

    assert get_native_size(load_pipeline(find_model("bundled"))) == (512, 512)


@pytest.mark.once
def test_diffusers_folders_give_the_same_picture(generate, tmp_path, photo):
    from ppdiffusers import ControlNetModel, DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(str(find_model("bundled").folder))
    pipe.save_pretrained(str(tmp_path / "model"), to_diffusers=True)
    controlnet = ControlNetModel.from_pretrained(str(find_controlnet("bundled").folder))
    controlnet.save_pretrained(str(tmp_path / "controlnet"), to_diffusers=True)
    assert find_model(str(tmp_path / "model")).from_diffusers is True
    assert find_controlnet(str(tmp_path / "controlnet")).from_diffusers is True
    given = ("--image", str(photo), "--guidance-scale", "3")
    bundled = pixels_of(generate(*given, folder="a")[0])
    folders = ("--model", str(tmp_path / "model"), "--controlnet", str(tmp_path / "controlnet"))
    (file,) = generate(*given, *folders, folder="b")
    np.testing.assert_array_equal(bundled, pixels_of(file))


def test_defaults_depend_on_the_model(tmp_path):
    from argparse import ArgumentParser

    from ppdiffusers_tome.tools.cli.commands import generate as command
    from ppdiffusers_tome.tools.generation.settings import choose_guidance_scale, parse_settings

    parser = ArgumentParser()
    command.add_arguments(parser)
    bundled = parse_settings(parser.parse_args([]), 0.5)
    hub = parse_settings(parser.parse_args(["--model", "runwayml/stable-diffusion-v1-5"]), 0.5)
    assert (bundled.steps, bundled.guidance_scale) == (10, 1.5)
    assert (hub.steps, hub.guidance_scale) == (20, None)  # until it is loaded, and known whether it draws classes
    assert choose_guidance_scale(hub.model, None) == 7.5
    assert hub.model.arguments == ("runwayml/stable-diffusion-v1-5", {})


def test_photo_guides_by_its_edges_and_edges_as_they_are(generate, photo, tmp_path):
    from ppdiffusers_tome.tools.generation.edges import EdgeSource

    edges = tmp_path / "edges.png"
    EdgeSource(photo).load(64, 64).save(edges)
    by_photo = generate("--image", str(photo), folder="a")
    by_edges = generate("--control-image", str(edges), folder="b")
    np.testing.assert_array_equal(pixels_of(by_photo[0]), pixels_of(by_edges[0]))
    assert read_settings(by_photo[0])["controlnet"] == {
        "model": "bundled",
        "scale": 1.0,
        "edges": {"option": "--image", "file": "photo.png", "fit": "crop", "canny_low": 100, "canny_high": 200},
    }


def test_pictures_of_another_size_than_the_bundled_models_are_told_of(generate, capsys):
    generate()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: at 64x64 the bundled model draws smears: it was made for 512x512; leave out ")


def test_which_pictures_are_of_another_size():
    from ppdiffusers_tome.tools.generation.loaded_pipeline import describe_unusual_size
    from ppdiffusers_tome.tools.generation.model_loader import load_pipeline

    model = find_model("bundled")
    pipe = load_pipeline(model)
    sizes = ((512, 512), (448, 448), (640, 512), (512, 640))
    assert [describe_unusual_size(model, pipe, *size) is None for size in sizes] == [True, False, False, False]
    assert describe_unusual_size(replace(model, bundled=False), pipe, 64, 64) is None


def test_tome_reaches_the_controlnet(generate, photo, monkeypatch):
    from ppdiffusers_tome.tools.generation import sampling

    seen, draw = [], sampling.generate_image

    def noted(pipe, *arguments, **keywords):
        seen.extend(pipe.tome.blocks)
        return draw(pipe, *arguments, **keywords)

    monkeypatch.setattr(sampling, "generate_image", noted)
    generate("--image", str(photo))
    assert set(seen) == {"unet", "controlnet"}


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (["--prompt", "a dog"], "prompt 'a dog' names none of the photographs that the bundled model draws: "),
        (["--prompt", PROMPT, "--negative-prompt", "blue " * 40], "and the model reads 32; the rest is ignored"),
        (["--prompt", PROMPT, "--image", "BLANK"], "is of one colour where it is used, so it has no edges"),
        (["--prompt", PROMPT, "--image", "WIDE"], "is 128x64 and the picture 64x64: its middle is used; --fit pad"),
        (["--prompt", PROMPT, "--image", "WIDE", "--fit", "pad"], "all of it is used, padded with black; --fit"),
    ],
)
def test_what_is_odd_is_warned_of_in_one_line(arguments, warning, capsys, tmp_path):
    from PIL import Image

    files = {"BLANK": tmp_path / "blank.png", "WIDE": tmp_path / "wide.png"}
    Image.new("RGB", (64, 64)).save(files["BLANK"])
    Image.linear_gradient("L").point(lambda value: value // 128 * 255).resize((128, 64)).save(files["WIDE"])
    given = [str(files.get(argument, argument)) for argument in arguments]
    assert main(["generate", *SMALL, "--output", str(tmp_path / "outputs"), *given]) == 0
    lines = heard(capsys.readouterr().err)
    assert len(lines) == 1
    assert lines[0].startswith("warning: ")
    assert warning in lines[0]
