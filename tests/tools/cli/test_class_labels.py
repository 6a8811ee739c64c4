"""A DiTPipeline in the commands: a class in place of a prompt, its own noise, size and names, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.patching.recorder import record_merging
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import model_loader, model_sources
from ppdiffusers_tome.tools.generation.class_labels import ClassLabels, select_prompts
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.generation.sampling import (
    generate_batch,
    generate_image,
    get_native_size,
    make_initial_noise,
)
from ppdiffusers_tome.tools.generation.schedulers import make_scheduler
from ppdiffusers_tome.tuning.candidates import list_candidates
from tools.cli.conftest import pixels_of, write_dit

NAMES = {"0": "cat", "1": "coffee, cup of coffee", "7": "brick wall"}
SIDE = 32
DRAWING: dict[str, Any] = dict(height=SIDE, width=SIDE, steps=2, guidance_scale=3.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small DiTPipeline, saved as ppdiffusers saves it, and its labels written where ppdiffusers reads them."""
    folder = tmp_path_factory.mktemp("dit")
    write_dit(folder, NAMES)
    return folder


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    loaded = load_pipeline(find_model(str(folder), class_labels=True), class_labels=True)
    loaded.set_progress_bar_config(disable=True)
    return loaded


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Run a command with the pipeline; returns its output folder."""

    def run_command(command: str, *arguments: str) -> Path:
        output = tmp_path / command
        given = ["--model", str(folder), "--steps", "2", "--output", str(output), *arguments]
        assert main([command, *given]) == 0
        return output

    return run_command


def test_labels_of_a_folder_are_those_of_the_loaded_pipeline(folder: Path, pipe: Any) -> None:
    labels = ClassLabels.from_folder(folder)
    assert dict(labels.class_by_name) == {"cat": 0, "coffee": 1, "cup of coffee": 1, "brick wall": 7}
    assert (labels.num_classes, labels.image_size) == (1000, SIDE)
    assert ClassLabels.from_pipeline(pipe) == labels
    assert get_native_size(pipe) == (SIDE, SIDE)
    assert labels.list_names() == ["cat", "coffee", "brick wall"]
    assert labels.list_names(3) == ["cat", "coffee", "2"]


@pytest.mark.parametrize(
    ("prompt", "number"),
    [("cat", 0), ("CAT ", 0), ("cup of coffee", 1), ("brick wall", 7), ("a photo of a cat", 0), ("3", 3), ("099", 99)],
)
def test_prompts_name_classes(folder: Path, prompt: str, number: int) -> None:
    assert ClassLabels.from_folder(folder).find_class(prompt) == number


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("cta", "prompt 'cta' is not a class of this DiTPipeline; did you mean cat?; it draws cat, coffee, brick wall"),
        ("1000", "give one of these, or a number from 0 to 999"),
        ("-1", "prompt '-1' is not a class"),
        ("a rocket", "prompt 'a rocket' is not a class"),  # the bundled models know it, this one does not
        ("9" * 5000, "is not a class"),
        ("", "prompt '' is not a class"),
    ],
)
def test_prompts_that_name_none_are_refused_with_the_names(folder: Path, prompt: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        ClassLabels.from_folder(folder).find_class(prompt)
    assert words in str(raised.value)


def test_classes_without_names_have_numbers(folder: Path) -> None:
    labels = ClassLabels({}, 10, SIDE)
    assert labels.find_class("9") == 9
    with pytest.raises(UserError, match=r"have no names .*holds no id2label\), so give a number from 0 to 9"):
        labels.find_class("cat")
    assert select_prompts(labels, None, ["some", "prompts"]) == ["0", "1"]


def test_many_names_are_not_all_listed() -> None:
    labels = ClassLabels({f"name {number}": number for number in range(40)}, 1000, SIDE)
    with pytest.raises(UserError, match=r"name 29 and 10 more; give one of these"):
        labels.find_class("cat")


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
def test_picture_is_that_of_the_noise_of_its_seed(pipe: Any, guidance_scale: float) -> None:
    """Worked out step by step, as the pipeline says it does."""
    given = {**DRAWING, "guidance_scale": guidance_scale}
    drawn = np.asarray(generate_image(pipe, "coffee", seed=5, **given))
    with paddle.no_grad():
        latent = make_initial_noise(pipe, SIDE, SIDE, 5)
        pipe.scheduler.set_timesteps(given["steps"])
        for timestep in pipe.scheduler.timesteps:
            both = paddle.concat([latent, latent])
            predicted = pipe.transformer(
                both, timestep=timestep.reshape([1]).expand([2]), class_labels=paddle.to_tensor([1, 1000])
            ).sample[:, :4]
            guided = predicted[1:] + guidance_scale * (predicted[:1] - predicted[1:])
            latent = pipe.scheduler.step(guided, timestep, latent).prev_sample
        decoded = pipe.vae.decode(latent / pipe.vae.config.scaling_factor).sample
    expected = ((decoded / 2 + 0.5).clip(0, 1) * 255).round().transpose([0, 2, 3, 1]).numpy()[0]
    assert np.abs(drawn.astype(int) - expected).max() <= 1
    assert expected.std() > 1


@pytest.mark.parametrize("scheduler", [None, "dpmsolver++", "pndm"])
def test_pictures_of_a_batch_are_those_drawn_alone(pipe: Any, scheduler: str | None) -> None:
    own = pipe.scheduler
    try:
        if scheduler is not None:
            pipe.scheduler = make_scheduler(scheduler, own.config)
        prompts, seeds = ["cat", "7", "cat"], [3, 4, 5]
        together = generate_batch(pipe, prompts, seeds=seeds, **DRAWING)
        for prompt, seed, picture in zip(prompts, seeds, together, strict=True):
            alone = np.asarray(generate_image(pipe, prompt, seed=seed, **DRAWING)).astype(int)
            assert np.abs(alone - np.asarray(picture)).max() <= 1
        assert (np.asarray(together[0]) != np.asarray(together[2])).any()
    finally:
        pipe.scheduler = own


@pytest.mark.parametrize("name", ["euler", "euler-a", "heun", "lms"])
def test_schedulers_that_scale_the_latent_are_refused(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ppdiffusers' pipeline steps on with the scaled one."""
    assert main(["generate", "--model", str(folder), "--prompt", "cat", "--scheduler", name]) == 2
    assert "scales the latents that the model is given" in capsys.readouterr().err


def test_its_own_size_may_be_given(run: Callable[..., Path]) -> None:
    side = str(DRAWING["height"])
    assert len(list(run("generate", "--prompt", "cat", "--height", side, "--width", side).iterdir())) == 1


def test_names_are_told_apart_by_capitals_and_are_never_empty() -> None:
    labels = ClassLabels({"Cardigan": 264, "cardigan": 474, "dog": 1}, 1000, 256)
    assert [labels.find_class(name) for name in ("Cardigan", "cardigan", "DOG")] == [264, 474, 1]
    with pytest.raises(UserError, match="is not a class"):
        labels.find_class("an elephant")


def test_an_empty_name_is_none(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    index = tmp_path / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"id2label": {"1": "dog,", "2": ""}}))
    labels = ClassLabels.from_folder(tmp_path)
    assert labels.class_by_name == {"dog": 1}
    with pytest.raises(UserError, match="is not a class"):
        labels.find_class("an elephant")


def test_every_step_is_told_and_nothing_is_left_behind(pipe: Any) -> None:
    module, steps = ppdiffusers.pipelines.dit.pipeline_dit, []
    before = module.randn_tensor, tiny.snapshot(pipe.transformer)

    def noted() -> Any:
        steps.append(1)
        return "nothing that may take the place of what the model returns"

    picture = generate_image(pipe, "cat", seed=0, after_step=noted, **DRAWING)
    assert len(steps) == DRAWING["steps"]
    assert (module.randn_tensor, tiny.snapshot(pipe.transformer)) == before
    assert picture.tobytes() == generate_image(pipe, "cat", seed=0, **DRAWING).tobytes()


def test_generate_draws_classes(run: Callable[..., Path], pipe: Any) -> None:
    output = run("generate", "--prompt", "a photo of a cat", "--prompt", "7", "--ratio", "0", "--guidance-scale", "3")
    cat, wall = sorted(output.iterdir())
    assert cat.name == "0001-a-photo-of-a-cat.png"
    assert (pixels_of(cat) == np.asarray(generate_image(pipe, "cat", seed=0, **DRAWING))).all()
    assert (pixels_of(wall) == np.asarray(generate_image(pipe, "brick wall", seed=1, **DRAWING))).all()


def test_generate_draws_a_file_of_classes(
    run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"prompt": "cat"}, {"prompt": "dog"}, {"prompt": "cat", "negative_prompt": "dog"}, {"prompt": "7"},
        {"prompt": "cat", "height": 64},
    ]  # fmt: skip
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, lines)))
    output = run("generate", "--prompts", str(prompts), "--batch-size", "2", "--on-error", "skip")
    assert sorted(path.name for path in output.glob("*.png")) == ["000001-cat.png", "000004-7.png"]
    complaints = capsys.readouterr().err
    assert "line 2 is skipped: prompt 'dog' is not a class of this DiTPipeline" in complaints
    assert "line 3 is skipped: negative_prompt is for pipelines with prompts" in complaints
    assert "line 5 is skipped: height 64 is not the size of this DiTPipeline, which draws 32x32 pixels" in complaints


def test_compare_draws_the_first_classes_by_itself(run: Callable[..., Path]) -> None:
    found = json.loads((run("compare", "--ratios", "0.5") / "compare.json").read_text())
    _, half = found["configurations"]
    assert [sample["prompt"] for sample in half["samples"]] == ["cat", "coffee", "2"]
    assert 0 < half["psnr_db"]["median"] < 80
    assert (found["run"]["height"], found["run"]["width"], found["run"]["guidance_scale"]) == (SIDE, SIDE, 4.0)


def test_evaluate_measures_ours_and_the_port(run: Callable[..., Path]) -> None:
    given = ["--prompt", "cat", "--prompt", "7", "--seeds", "0", "1", "--ratios", "0.5", "--port-ratios", "0.5"]
    found = json.loads((run("evaluate", *given) / "evaluate.json").read_text())
    assert [row["configuration"]["name"] for row in found["configurations"]] == ["unmerged", "ours 0.5", "port 0.5"]
    assert found["levels"] == [2]
    for row in found["configurations"][1:]:
        assert [(sample["prompt"], sample["seed"]) for sample in row["samples"]] == [
            ("cat", 0), ("cat", 1), ("7", 0), ("7", 1),
        ]  # fmt: skip
        assert 0 < row["psnr_db"]["median"] < 80
        assert row["block_seconds"]["median"] > 0


def test_tune_tries_settings(run: Callable[..., Path]) -> None:
    found = json.loads((run("tune", "--prompt", "cat", "--max-memory", "64GiB") / "tune.json").read_text())
    assert {trial["family"] for trial in found["trials"]} == set(list_candidates())


def test_visualize_shows_the_half_that_was_given_the_class(run: Callable[..., Path], pipe: Any) -> None:
    output = run("visualize", "--prompt", "cat", "--ratios", "0.5", "--at", "1", "2", "--steps", "6")
    found = json.loads((output / "visualize.json").read_text())
    apply_tome(pipe, 0.5)
    try:
        records = {}
        for image in (0, 1):
            with record_merging(pipe, image=image) as records[image]:
                generate_image(pipe, "cat", seed=0, **{**DRAWING, "guidance_scale": 4.0, "steps": 6})
    finally:
        pipe.remove_tome()
    shown = [(row["largest_group"], row["unmerged"]) for row in found["merged"]]
    prompted, unprompted = (
        [(int(record.sizes.max()), int((record.sizes == 1).sum())) for record in records[image]] for image in (0, 1)
    )
    assert shown == prompted != unprompted
    assert (output / "visualize.png").is_file()


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments for the same pipeline as a hub has it, whose class and labels nobody knows before it is loaded."""
    from_pretrained = ppdiffusers.DiffusionPipeline.from_pretrained.__func__

    def fetched(cls: type, name: str, **keywords: Any) -> Any:
        return from_pretrained(cls, str(folder) if name == "some/dit" else name, **keywords)

    monkeypatch.setattr(ppdiffusers.DiffusionPipeline, "from_pretrained", classmethod(fetched))
    return ["--model", "some/dit", "--steps", "1"]


def test_defaults_of_a_hubs_pipeline_are_those_of_a_folder(hub: list[str], run: Callable[..., Path]) -> None:
    """Its guidance, and classes in place of prompts."""
    found = {}
    for name, more in (("folder", []), ("hub", hub)):
        output = run("compare", "--ratios", "0.5", "--overwrite", *more)
        compared = json.loads((output / "compare.json").read_text())
        prompts = [sample["prompt"] for sample in compared["configurations"][1]["samples"]]
        output = run("visualize", "--ratios", "0.5", "--overwrite", *more, "--steps", "3")
        shown = json.loads((output / "visualize.json").read_text())["run"]
        found[name] = (prompts, compared["run"]["guidance_scale"], shown["prompt"], shown["guidance_scale"])
    assert found["hub"] == found["folder"] == (["cat", "coffee", "2"], 4.0, "cat", 4.0)


def test_tune_tries_a_hubs_pipeline_on_its_own_classes(hub: list[str], tmp_path: Path) -> None:
    assert main(["tune", *hub, "--max-memory", "64GiB", "--output", str(tmp_path)]) == 0


@pytest.mark.parametrize("at", ["folder", "hub"])
def test_lines_that_name_no_class_are_refused_before_the_first_picture(
    at: str, folder: Path, hub: list[str], photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if at == "folder":
        monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    model = ["--model", str(folder)] if at == "folder" else hub
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "outputs"
    needs = "needs a ControlNet that fits the model; name one with --controlnet, which takes a pipeline of Stable"
    for bad, words in (
        ({"prompt": "cta"}, "prompt 'cta' is not a class of this DiTPipeline; did you mean cat?"),
        ({"prompt": "cat", "negative_prompt": "dog"}, "negative_prompt is for pipelines with prompts"),
        ({"prompt": "cat", "height": 64}, "height 64 is not the size of this DiTPipeline, which draws 32x32 pixels"),
        ({"prompt": "cat", "image": photo.name},
         "image is for pipelines with prompts" if at == "folder" else f"a control image {needs}"),
    ):  # fmt: skip
        prompts.write_text("\n".join(json.dumps(line) for line in ({"prompt": "cat"}, bad)))
        assert main(["generate", *model, "--prompts", str(prompts), "--output", str(output), "--overwrite"]) == 2
        error = capsys.readouterr().err
        assert f"--prompts {prompts}, line 2: {words}" in error
        assert error.count("\n") == 1
        assert not list(output.glob("*.png"))


def test_lines_with_a_control_image_are_skipped(
    folder: Path, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "outputs"
    prompts.write_text("\n".join(map(json.dumps, ({"prompt": "cat", "image": photo.name}, {"prompt": "cat"}))))
    given = ["--model", str(folder), "--steps", "1", "--prompts", str(prompts), "--on-error", "skip"]
    assert main(["generate", *given, "--output", str(output)]) == 0
    assert "line 1 is skipped: image is for pipelines with prompts" in capsys.readouterr().err
    assert [path.name for path in output.glob("*.png")] == ["000002-cat.png"]


def test_edges_for_a_hubs_pipeline_advise_nothing_that_is_then_refused(
    hub: list[str], photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *hub, "--prompt", "cat", "--image", str(photo)]) == 2
    assert "which takes a pipeline of Stable Diffusion or SDXL and no other" in capsys.readouterr().err


def test_a_bundled_pipeline_takes_the_numbers_of_its_names_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taught no others."""
    bundled = tmp_path / "dit"
    shutil.copytree(folder, bundled)
    files = sorted(path for path in bundled.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(bundled)}" for path in files]
    (bundled / "SHA256SUMS").write_text("\n".join(sums))
    monkeypatch.setattr(model_sources, "DIT", bundled)
    labels = find_model("bundled-dit", class_labels=True).labels
    assert labels is not None
    assert [labels.find_class(prompt) for prompt in ("7", "1", "cup of coffee")] == [7, 1, 1]
    with pytest.raises(UserError, match=r"'2' is not a class .* give one of these, or one of the numbers 0, 1, 7$"):
        labels.find_class("2")
    assert labels.list_names(3) == ["cat", "coffee", "brick wall"]
    with pytest.raises(UserError, match=r"a number from 0 to 1$"):
        ClassLabels({"cat": 0, "dog": 1}, 1000, SIDE, only_named=True).find_class("2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "dog"], "prompt 'dog' is not a class of this DiTPipeline; it draws cat, coffee, brick wall"),
        (["--negative-prompt", "blur"], "--negative-prompt is for pipelines with prompts, and a DiTPipeline is given"),
        (["--image", "PHOTO"], "--image is for pipelines with prompts"),
        (["--control-image", "PHOTO"], "--control-image is for pipelines with prompts"),
        (["--controlnet", "bundled"], "--controlnet is for pipelines with prompts"),
        (["--height", "64"], "height 64 is not the size of this DiTPipeline, which draws 32x32 pixels"),
        (["--width", "64"], "width 64 is not the size"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "compare", "tune", "visualize"])
def test_what_it_does_not_take_is_refused_before_anything_is_loaded(
    command: str, arguments: list[str], words: str, folder: Path, photo: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from ppdiffusers_tome.tools.generation import model_loader

    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    given = [str(photo) if argument == "PHOTO" else argument for argument in arguments]
    prompt = [] if "--prompt" in given else ["--prompt", "cat"]
    assert main([command, "--model", str(folder), *prompt, *given, "--output", str(tmp_path / "outputs")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
    assert not (tmp_path / "outputs").exists()


def test_evaluate_refuses_what_is_for_prompts(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, words in (
        (["--negative-prompt", "blur", "--prompt", "cat"], "--negative-prompt is for pipelines with prompts"),
        (["--prompt", "dog"], "prompt 'dog' is not a class"),
        ([], "there is no prompt"),
    ):
        assert main(["evaluate", "--model", str(folder), *given, "--output", str(tmp_path / "outputs")]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_guidance_takes_a_class_of_its_own() -> None:
    """The pipeline asks for class 1000 whatever its model has."""
    labels = ClassLabels({}, 10, SIDE)
    labels.check_arguments({}, None, SIDE, 1.0)
    with pytest.raises(UserError, match=r"guidance scale 4: a DiTPipeline takes class 1000 .* and this model has 10"):
        labels.check_arguments({}, None, None, 4.0)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model_index.json", {"id2label": "cat"}, "holds an id2label that gives no names by number"),
        ("model_index.json", {"id2label": {"cat": "0"}}, "holds an id2label that gives no names by number"),
        ("transformer/config.json", {"num_embeds_ada_norm": None}, "without classes or size"),
    ],
)
def test_folder_that_does_not_tell_its_classes_is_refused(
    file: str, content: dict[str, Any], words: str, folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / file).write_text(json.dumps(json.loads((copy / file).read_text()) | content))
    with pytest.raises(UserError, match=words):
        find_model(str(copy), class_labels=True)


@pytest.mark.parametrize("command", [["export"], ["bench", "pipeline"]])
def test_commands_that_take_prompts_alone_say_so(
    command: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--model", str(folder), "--output", str(tmp_path / "outputs")]) == 2
    assert "is a DiTPipeline without a unet and a vae; give a text-to-image pipeline" in capsys.readouterr().err
