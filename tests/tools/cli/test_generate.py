"""``generate``: its files, their content, and what they depend on."""

import itertools
import re
import resource
import shutil
from typing import Any

import numpy as np
import pytest
import recognition
from ppdiffusers import ControlNetModel, DiffusionPipeline, StableDiffusionPipeline

import ppdiffusers_tome
import tiny
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.compilation import comparison
from ppdiffusers_tome.machine import PRECISIONS
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.edges import load_edges
from ppdiffusers_tome.tools.generation import loading, sampling
from ppdiffusers_tome.tools.generation.models import find_controlnet, find_model
from ppdiffusers_tome.tools.generation.settings import SCHEDULERS
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.helpers import PROMPT, ROCKET, SMALL, heard, pixels_of

CLEAN = 0.8  # a similarity that a noisy rocket does not reach
NATIVE = ("--height", "512", "--width", "512", "--steps", "6", "--guidance-scale", "1")


def test_files_have_names_and_settings(generate, capsys):
    given = ("--seed", "7", "--ratio", "0.25", "--negative-prompt", ROCKET, "--scheduler", "euler", "--no-rand")
    files = generate(*given, prompts=(PROMPT, ROCKET))
    assert [file.name for file in files] == ["0001-a-photo-of-a-cat.png", "0002-a-photo-of-a-rocket.png"]
    settings = read_settings(files[0])
    expected = dict(
        prompt=PROMPT, negative_prompt=ROCKET, seed=7, model="photographs", controlnet=None, height=64,
        width=64, steps=1, guidance_scale=1.5, scheduler="EulerDiscreteScheduler", dtype="float32", xformers=False,
        compile=None, tome=ToMeConfig(ratio=0.25, use_rand=False).to_dict(),
    )  # fmt: skip
    assert {name: settings[name] for name in expected} == expected
    assert settings["versions"]["ppdiffusers_tome"] == ppdiffusers_tome.__version__
    captured = capsys.readouterr()
    assert heard(captured.err) == []
    assert "s per image (median of 2) on " in captured.out
    assert "MiB with decoding" in captured.out


def test_image_i_has_seed_plus_i_and_other_settings_are_another_image(generate):
    several = generate("--seed", "3", "--scheduler", "euler-a", prompts=(ROCKET, PROMPT), folder="a")
    (alone,) = generate("--seed", "4", "--scheduler", "euler-a", folder="b")
    np.testing.assert_array_equal(pixels_of(several[1]), pixels_of(alone))
    for number, given in enumerate((("--tile", "4"), ("--ratio", "0"))):
        (other,) = generate("--seed", "4", "--scheduler", "euler-a", *given, folder=str(number))
        assert not np.array_equal(pixels_of(alone), pixels_of(other))


def test_ratio_0_equals_the_plain_pipeline_and_a_cache_needs_no_merging(generate):
    (file,) = generate("--ratio", "0", "--steps", "2")
    pipe = StableDiffusionPipeline.from_pretrained(str(tiny.PHOTOGRAPHS))
    noise = sampling.make_initial_noise(pipe, 64, 64, seed=0)
    plain = pipe(PROMPT, height=64, width=64, num_inference_steps=2, guidance_scale=1.5, latents=noise).images[0]
    np.testing.assert_array_equal(pixels_of(file), np.asarray(plain))
    assert read_settings(file)["tome"] is None
    (computed,) = generate("--ratio", "0", "--steps", "10", folder="b")
    (cached,) = generate("--cache", "0.5", "--steps", "10", folder="c")
    assert read_settings(cached)["tome"]["ratio"] == 0  # a cache alone
    assert not np.array_equal(pixels_of(computed), pixels_of(cached))


def test_a_photo_guides_by_its_edges(generate, photo, capsys):
    (by_photo,) = generate("--image", str(photo), "--ratio", "0")
    pipe = loading.load_pipeline(find_model("photographs"), find_controlnet("controlnet"))
    settings: dict[str, Any] = dict(height=64, width=64, seed=0, steps=1, guidance_scale=1.5)
    by_edges = sampling.generate_image(pipe, PROMPT, edges=load_edges(photo, 64, 64), **settings)
    np.testing.assert_array_equal(pixels_of(by_photo), np.asarray(by_edges))
    control = read_settings(by_photo)["controlnet"]
    assert (control["model"], control["scale"], control["photo"]) == ("controlnet", 1, "photo.png")
    generate("--image", str(photo), "--cache", "0.1", "--steps", "9", folder="d")
    assert "; 1 of 9 calls of unet skipped; 1 of 9 calls of controlnet skipped" in capsys.readouterr().out


def test_compile_draws_the_same_image(generate, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(PRECISIONS, "bfloat16", ("nowhere",))
    (plain,), (compiled,) = generate(), generate("--compile", folder="b")
    captured = capsys.readouterr()
    assert "UNet2DConditionModel was compiled in" in captured.err
    assert "(median of 1, with compiling in the first) on CPU; peak memory" in captured.out
    # That of Paddle's tensors, some MiB, is the least of it.
    assert int(re.search(r"peak memory ([\d,]+) MiB \(of the process\)", captured.out)[1].replace(",", "")) > 200
    assert read_settings(compiled)["compile"] == "float32"
    assert np.abs(pixels_of(plain).astype(int) - pixels_of(compiled)).max() <= 1
    monkeypatch.setitem(comparison.BOUNDS, "float32", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    for _ in range(2):  # of the same process, too
        assert main(["generate", *SMALL, "--prompt", PROMPT, "--compile", "--output", str(tmp_path / "c")]) == 2
        error = heard(capsys.readouterr().err)[-1]
        assert "error: --compile: UNet2DConditionModel cannot be compiled: its result in float32 differs" in error
        assert error.endswith("; omit --compile")
    assert list((tmp_path / "c").iterdir()) == []


def test_a_stopped_run_generates_what_is_missing(tmp_path, model, capsys, monkeypatch):
    """Its disk was full. What was generated with other settings is not taken for it, nor is a file of the user's."""
    prompts, folder = tmp_path / "prompts.txt", tmp_path / "outputs"
    prompts.write_text("".join(f"a photo of a {subject}\n" for subject in ("cat", "rocket", "wall")))

    def run(*arguments: str) -> int:
        return main(["generate", *SMALL, "--prompts", str(prompts), "--output", str(folder), *arguments])

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))  # writing more fails as on a full disk
    try:
        assert run() == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written (File too large); make room" in heard(capsys.readouterr().err)[-1]
    assert list(folder.iterdir()) == []
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")  # of the launcher's processes each takes every n-th line
    assert run() == 0
    assert [path.name for path in folder.iterdir()] == ["0002-a-photo-of-a-rocket.png"]
    monkeypatch.delenv("PADDLE_TRAINER_ID")
    monkeypatch.delenv("PADDLE_TRAINERS_NUM")
    assert run() == 0
    assert f"kept: 1 image of {folder}; --overwrite generates all again\n" in capsys.readouterr().out
    files = sorted(folder.iterdir())
    assert [read_settings(path)["seed"] for path in files] == [0, 1, 2]
    monkeypatch.setattr(loading, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    assert run() == 0  # a finished run needs no model
    (model / "model_index.json").touch()  # of the same name
    for option, value, name in (
        ("--tile", "9", "settings of token merging"), ("--steps", "2", "steps"), ("--seed", "9", "seed"),
        ("--scheduler", "lcm", "scheduler"), ("--model", str(model), "model files"),
        ("--compile", "float32", "compile"),
    ):  # fmt: skip
        assert run(option, value) == 2
        words = f"give another --output, or --overwrite: {files[0]} is there and differs in its {name}"
        assert words in capsys.readouterr().err
    files[0].write_bytes(b"mine")
    assert run() == 2
    assert files[0].read_bytes() == b"mine"


@pytest.mark.parametrize(
    "scheduler", ["euler-a", *(pytest.param(name, marks=pytest.mark.sweep) for name in SCHEDULERS)]
)
def test_every_scheduler_generates_the_photograph(generate, scheduler):
    (file,) = generate(*NATIVE, "--scheduler", scheduler, prompts=(ROCKET,))
    assert read_settings(file)["scheduler"] == SCHEDULERS[scheduler]
    assert recognition.subject_similarities(pixels_of(file))["rocket"] > CLEAN


def test_diffusers_folders_give_the_same_image(generate, tmp_path, photo):
    pipe = DiffusionPipeline.from_pretrained(str(tiny.PHOTOGRAPHS))
    pipe.save_pretrained(str(tmp_path / "model"), to_diffusers=True, safe_serialization=True)
    controlnet = ControlNetModel.from_pretrained(str(tiny.CONTROLNET))
    controlnet.save_pretrained(str(tmp_path / "controlnet"), to_diffusers=True)
    for path in (tmp_path / "model").rglob("model_state.pdparams"):
        path.unlink()
        shutil.copy(tiny.PHOTOGRAPHS / path.parent.name / "model.safetensors", path.parent)
    given = ("--image", str(photo), "--guidance-scale", "3")
    folders = ("--model", str(tmp_path / "model"), "--controlnet", str(tmp_path / "controlnet"))
    (known,), (file,) = generate(*given, folder="a"), generate(*given, *folders, folder="b")
    np.testing.assert_array_equal(pixels_of(known), pixels_of(file))


def test_progress_is_told_without_a_terminal(generate, monkeypatch, capsys):
    clock = itertools.count(0, 5)  # seconds, five from one look at it to the next
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    generate("--steps", "3", prompts=(PROMPT, ROCKET))
    lines = capsys.readouterr().err.splitlines()
    told = [re.sub(r", [\d:]+ left$", "", line) for line in lines if "smears" not in line]
    steps = [f"steps: {number} of 3" for number in (1, 2, 3)]
    assert told == ["loading photographs ...", *steps, "images: 1 of 2", *steps, "images: 2 of 2"]


def test_oddities_are_reported_in_one_line_each(capsys, tmp_path):
    given = ["--prompt", "a dog", "--negative-prompt", "blue " * 40, "--output", str(tmp_path)]
    assert main(["generate", *SMALL, *given]) == 0
    _, too_long, unknown, unusual = capsys.readouterr().err.splitlines()  # after loading
    assert too_long == "warning: the negative prompt has 162 tokens and the model reads 32; the rest is ignored"
    assert unknown.startswith("warning: prompt 'a dog' names nothing that the model photographs knows: an ")
    assert unusual.startswith("warning: at 64x64 images may be smears or repeat what they show: ")
