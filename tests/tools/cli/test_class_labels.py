"""A DiTPipeline in the commands: a class in place of a prompt, with its own noise, size and names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import loaded_pipeline
from ppdiffusers_tome.tools.generation.checks import check_loaded, parse_settings
from ppdiffusers_tome.tools.generation.loading import load_pipeline
from ppdiffusers_tome.tools.generation.models import find_model
from ppdiffusers_tome.tools.generation.prompts import ClassLabels
from ppdiffusers_tome.tools.generation.sampling import generate_image, get_labels
from tools.cli.helpers import make_parser, pixels_of, write_dit

SIDE = 32
COMMON: dict[str, Any] = dict(height=SIDE, width=SIDE, steps=2, guidance_scale=3.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dit")
    write_dit(folder, {"0": "cat", "1": "coffee, cup of coffee,", "7": "brick wall"})
    return folder


@pytest.fixture(scope="module")
def pipe(folder):
    loaded = load_pipeline(find_model(str(folder)))
    loaded.set_progress_bar_config(disable=True)
    return loaded


@pytest.fixture
def run(folder, tmp_path):
    """Run a command with the pipeline; returns its output folder."""

    def run_command(command: str, *arguments: str) -> Path:
        output = tmp_path / command
        assert main([command, "--model", str(folder), "--steps", "2", "--output", str(output), *arguments]) == 0
        return output

    return run_command


def test_prompts_name_classes_by_name_or_number(pipe):
    labels = get_labels(pipe)
    prompts = ("cat", "CAT ", "cup of coffee", "brick wall", "3", "099")
    assert [labels.find_class(prompt) for prompt in prompts] == [0, 0, 1, 7, 3, 99]
    assert labels.list_names() == ["cat", "coffee", "brick wall"]
    assert labels.num_classes == 1000
    named = ClassLabels({"Cardigan": 264, "cardigan": 474}, 1000)
    assert [named.find_class(name) for name in ("Cardigan", "cardigan")] == [264, 474]


def test_prompts_that_name_none_are_refused_with_the_names():
    with pytest.raises(UserError, match=r"'cta' is not a class .*did you mean cat\?; .* a name that it knows: 'cat'"):
        ClassLabels({"cat": 0}, 10).find_class("cta")
    with pytest.raises(UserError, match="give a number from 0 to 39, or a name that it knows: none"):
        ClassLabels({}, 40).find_class("9" * 5000)


def test_generate_takes_classes(run, pipe, folder, get_error):
    given = ["--prompt", "cat", "--prompt", "7", "--ratio", "0", "--guidance-scale", "3", "--height", "32"]
    cat, seven = sorted(run("generate", *given).iterdir())
    assert (pixels_of(cat) == np.asarray(generate_image(pipe, "cat", seed=0, **COMMON))).all()
    assert (pixels_of(seven) == np.asarray(generate_image(pipe, "brick wall", seed=1, **COMMON))).all()
    error = get_error("generate", "--model", str(folder), "--prompt", "cat", "--scheduler", "euler")
    assert "it scales the latents" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "--prompt", "dog"], "prompt 'dog' is not a class of this DiTPipeline"),
        (["compare"], "'a photo of an astronaut' is not a class of this DiTPipeline; give a number from 0 to 999"),
        (["compare", "--negative-prompt", "x"], "--negative-prompt has no effect in a DiTPipeline; omit it"),
        (["visualize", "--height", "64"], "height 64 is not the size of this DiTPipeline, 32x32 pixels"),
        (["tune", "--controlnet", "controlnet", "--image", "photo.png"], "is a DiTPipeline; a ControlNet can be added"),
    ],
)
def test_what_a_dit_cannot_do_is_refused(arguments, words, folder, photo, get_error):
    assert words in get_error(*arguments, "--model", str(folder))


@pytest.mark.parametrize("num_classes", [10, 2000])
def test_guidance_needs_1000_classes(num_classes, pipe, folder, monkeypatch):
    monkeypatch.setattr(loaded_pipeline, "get_labels", lambda pipe: ClassLabels({}, num_classes))
    settings = parse_settings(make_parser("generate").parse_args(["--model", str(folder)]))
    with pytest.raises(UserError, match="guidance scale 4: a DiTPipeline guides with class 1000 as none"):
        check_loaded(loaded_pipeline.LoadedPipeline(pipe, settings))


def test_compare_takes_classes(run):
    found = json.loads((run("compare", "--ratios", "0.5", "--prompt", "2") / "compare.json").read_text())
    assert [sample["prompt"] for sample in found["configurations"][1]["samples"]] == ["2"]
    assert (found["run"]["height"], found["run"]["guidance_scale"]) == (SIDE, 4.0)
