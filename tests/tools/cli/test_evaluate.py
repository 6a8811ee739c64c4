"""``evaluate``: what it writes, that it resumes where it was stopped, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from PIL import Image

from launching import on_ranks
from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, prompt_of
from ppdiffusers_tome.tools.evaluate import runner
from ppdiffusers_tome.tools.evaluate.features import Inception
from ppdiffusers_tome.tools.generation import sampling
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.measure.json_lines import Writer
from tools.cli.conftest import PROMPT, SMALL, pixels_of

ROCKET = "a photo of a rocket"
TWO = ["--prompt", PROMPT, "--prompt", ROCKET]
BOTH = ["--ratios", "0.5", "--port-ratios", "0.5"]
NAMES = ["unmerged", "ours 0.5", "port 0.5"]


def evaluate(folder: Path, *arguments: str) -> int:
    return main(["evaluate", *SMALL, "--output", str(folder), *arguments])


def found_in(folder: Path) -> dict[str, dict[str, Any]]:
    """What was found, by the name of the configuration."""
    described = json.loads((folder / "evaluate.json").read_text())
    return {row["configuration"]["name"]: row for row in described["configurations"]}


def similarity_in(folder: Path) -> dict[tuple[str, str, int], tuple[float | None, float | None]]:
    return {
        (name, sample["prompt"], sample["seed"]): (sample["psnr_db"], sample["ssim"])
        for name, row in found_in(folder).items()
        for sample in row["samples"]
    }


def drawn_in(folder: Path) -> list[tuple[str, str, int]]:
    """Everything that was drawn, in that order; of lines that are not whole nothing is known."""
    lines = []
    for line in (folder / "evaluate.jsonl").read_text().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    pictures = [line["picture"] for line in lines if "picture" in line]
    return [(picture["configuration"], picture["prompt"], picture["seed"]) for picture in pictures]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation that nothing interrupted: two prompts, the port and ours."""
    folder = tmp_path_factory.mktemp("whole")
    assert evaluate(folder, *TWO, *BOTH) == 0
    return folder


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CLIP with random weights and the bundled model's tokenizer."""
    from paddlenlp.transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    folder = tmp_path_factory.mktemp("clip")
    tokenizer = CLIPTokenizer.from_pretrained(str(find_model("bundled").folder / "tokenizer"))
    shape = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    text = dict(vocab_size=len(tokenizer), max_position_embeddings=20, eos_token_id=tokenizer.eos_token_id, **shape)
    config = CLIPConfig(text_config=text, vision_config=dict(image_size=32, patch_size=8, **shape), projection_dim=12)
    CLIPModel(config).save_pretrained(str(folder))
    side = dict(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(CLIPImageProcessor(**side), tokenizer).save_pretrained(str(folder))
    return folder


class Colours(paddle.nn.Layer):
    """Stands in for Inception: as many features, all of the mean colour."""

    def __init__(self, features: int = 2048) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(3, features)

    def forward(self, pictures: paddle.Tensor) -> paddle.Tensor:
        return self.linear(pictures.mean(axis=[2, 3]))


class Small(Colours):
    """A network for pictures of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(3 * 8 * 8, 2048)

    def forward(self, pictures: paddle.Tensor) -> paddle.Tensor:
        return self.linear(pictures.flatten(1))


def saved(network: paddle.nn.Layer, path: Path, side: int = 299) -> Path:
    spec = paddle.static.InputSpec([None, 3, side, side], "float32")
    network.eval()
    paddle.jit.save(network, str(path), input_spec=[spec])
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


def test_everything_is_measured_and_written(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = found_in(whole)
    assert list(found) == NAMES
    for row in found.values():
        assert row["seconds"]["median"] > row["block_seconds"]["median"] > 0
        assert row["speed_up"]["median"] > 0
        assert [sample["prompt"] for sample in row["samples"]] == [PROMPT, ROCKET]
        assert all(set(sample["block_seconds"]) == {"1", "2", "4", "8"} for sample in row["samples"])
        assert 0 <= row["prompt_adherence"] <= 1
    assert found["unmerged"]["block_speed_up"] == {"median": 1, "low": 1, "high": 1, "interval": None}
    assert found["unmerged"]["psnr_db"] is None
    assert all(10 < found[name]["psnr_db"]["median"] < 60 for name in NAMES[1:])
    assert similarity_in(whole)["ours 0.5", PROMPT, 0] != similarity_in(whole)["port 0.5", PROMPT, 0]
    # Whoever comes after the unmerged picture changes from case to case.
    assert [name for name, _, _ in drawn_in(whole)] == [*NAMES, "unmerged", "port 0.5", "ours 0.5"]
    table = (whole / "evaluate.md").read_text()
    assert "bundled model, 64x64 pixels, 1 step," in table
    assert all(f"| {name} | " in table for name in NAMES)
    with Image.open(whole / "evaluate.png") as picture:
        assert len(picture.getcolors(10**6)) > 10
    assert {path.name for path in whole.iterdir()} == {
        "evaluate.md", "evaluate.json", "evaluate.jsonl", "evaluate.png", "references",
    }  # fmt: skip
    assert len(list((whole / "references").iterdir())) == 2


def test_the_unmerged_picture_is_drawn_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines are faster in one minute than in the next: seconds are compared with the last unmerged picture's."""
    monkeypatch.setattr(runner, "STRETCH", 2)
    assert evaluate(tmp_path, "--prompt", PROMPT, "--ratios", "0.3", "0.5", "0.7") == 0
    drawn = ["unmerged", "ours 0.3", "ours 0.5", "unmerged", "ours 0.7"]
    assert [name for name, _, _ in drawn_in(tmp_path)] == drawn
    lines = [json.loads(line) for line in (tmp_path / "evaluate.jsonl").read_text().splitlines()]
    pictures = [line["picture"] for line in lines if "picture" in line]
    assert [picture["run"] for picture in pictures] == [1, 1, 1, 2, 2]
    speed_ups = [row["speed_up"]["median"] for row in found_in(tmp_path).values()]
    first, *others, last, third = (picture["seconds"] for picture in pictures)
    assert speed_ups == [1, *(first / other for other in others), last / third]
    # Similarity is to the first, from the same noise; no other is kept.
    assert pictures[3]["psnr_db"] is None
    assert len(list((tmp_path / "references").iterdir())) == 1


@pytest.mark.once
@pytest.mark.parametrize("pictures", [2, pytest.param(4, marks=pytest.mark.sweep)])
def test_stopped_run_resumes_and_finds_the_same(
    pictures: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, drawn = sampling.generate_image, []

    def stopped(*arguments: Any, **keywords: Any) -> Image.Image:
        if len(drawn) == len(NAMES) + pictures:  # behind one warm-up each
            raise KeyboardInterrupt
        drawn.append(keywords)
        return draw(*arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(sampling, "generate_image", stopped)
        assert evaluate(tmp_path, *TWO, *BOTH) == 130
    assert len(drawn_in(tmp_path)) == pictures
    assert not (tmp_path / "evaluate.json").exists()
    with (tmp_path / "evaluate.jsonl").open("a") as file:
        file.write('{"picture": {"confi')  # as a machine that lost its power leaves it
    assert evaluate(tmp_path, *TWO, *BOTH) == 0
    assert similarity_in(tmp_path) == similarity_in(whole)
    # The case that was cut off begins with the unmerged picture again, so that seconds are of the same minutes.
    again = drawn_in(tmp_path)[pictures:]
    assert again[0] == ("unmerged", PROMPT if pictures < 3 else ROCKET, 0)
    assert len(again) == {2: 5, 4: 3}[pictures]
    later = len(drawn_in(tmp_path))
    assert evaluate(tmp_path, *TWO, *BOTH) == 0
    assert len(drawn_in(tmp_path)) == later


# A configuration; the unmerged picture of a case, without which the others say nothing; and one of the others, which
# is drawn beside the unmerged one again.
@pytest.mark.once
@pytest.mark.parametrize(("place", "pictures"), [(2, 6), (5, 8), (7, 7)])
def test_torn_line_is_told_and_its_picture_drawn_again(
    place: int, pictures: int, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of the file, as a rank leaves it that was killed while others went on writing."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "evaluate.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[place] = lines[place][:25] + b"\n"
    path.write_bytes(b"".join(lines))
    assert evaluate(tmp_path, *TWO, *BOTH) == 0
    warning = f"warning: {path}, line {place + 1} is incomplete, as after a killed process; it is skipped"
    assert warning in capsys.readouterr().err.splitlines()
    assert similarity_in(tmp_path) == similarity_in(whole)
    assert len(drawn_in(tmp_path)) == pictures


@pytest.mark.once
def test_evaluation_that_another_run_writes_is_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    for name in ("evaluate.jsonl", "evaluate.part-0001.jsonl"):
        with Writer(tmp_path / name):
            assert evaluate(tmp_path, *TWO, *BOTH, "--overwrite") == 2
        assert f"another run writes to {tmp_path / name}; wait until it has ended" in capsys.readouterr().err
        assert drawn_in(tmp_path) == drawn_in(whole)
    assert evaluate(tmp_path, *TWO, *BOTH) == 0


@pytest.mark.once
def test_system_that_does_not_tell_cores_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS and Windows do not."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert evaluate(tmp_path, "--prompt", PROMPT, "--ratios", "0.5") == 0
    on = next(json.loads(line) for line in (tmp_path / "evaluate.jsonl").read_text().splitlines() if '"on"' in line)
    assert on["on"]["cores"] == os.cpu_count()


@pytest.mark.once
def test_more_is_added_to_what_is_there(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    suites = [tmp_path / "one.jsonl", tmp_path / "other.jsonl"]
    suites[0].write_text('{"name": "tiles", "family": "in tiles", "ratio": 0.5, "tile": 4}\n')
    suites[1].write_text('{"name": "keys", "method": "keys", "ratio": 0.5}\n')
    ToMeConfig(ratio=0.25).save(tmp_path / "quarter.json")
    more = ["--suite", *map(str, suites), "--configs", str(tmp_path / "quarter.json"), "--seeds", "0", "3"]
    assert evaluate(tmp_path, "--prompt", PROMPT, *BOTH, *more) == 0
    new = drawn_in(tmp_path)[len(drawn_in(whole)) :]
    assert [each[2] for each in new] == [0] * 4 + [3] * 6
    assert {each[0] for each in new[:4]} == {"unmerged", "quarter", "tiles", "keys"}
    found = found_in(tmp_path)
    assert list(found) == ["unmerged", "ours 0.5", "quarter", "port 0.5", "tiles", "keys"]  # by family
    assert [sample["seed"] for sample in found["tiles"]["samples"]] == [0, 3]
    before, after = similarity_in(whole), similarity_in(tmp_path)
    assert after["ours 0.5", PROMPT, 0] == before["ours 0.5", PROMPT, 0]
    assert after["ours 0.5", PROMPT, 3] != before["ours 0.5", PROMPT, 0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--height", "128"], "was measured with height=64 and this run has 128"),
        (["--steps", "2"], "was measured with steps=1 and this run has 2"),
        (["--negative-prompt", "blur"], "was measured with negative_prompt=None and this run has 'blur'"),
    ],
)
def test_findings_of_another_run_are_refused(
    arguments: list[str], sentence: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    assert evaluate(tmp_path, *TWO, *BOTH, *arguments) == 2
    assert sentence in capsys.readouterr().err
    assert drawn_in(tmp_path) == drawn_in(whole)


@pytest.mark.once
def test_overwrite_begins_anew(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    assert evaluate(tmp_path, "--prompt", PROMPT, "--ratios", "0.5", "--steps", "2", "--overwrite") == 0
    assert drawn_in(tmp_path) == [("unmerged", PROMPT, 0), ("ours 0.5", PROMPT, 0)]
    (reference,) = [path for path in (whole / "references").iterdir() if "cat" in path.name]
    # The unmerged picture of two steps is in place of that of one.
    assert (pixels_of(reference) != pixels_of(tmp_path / "references" / reference.name)).any()


@pytest.mark.once
def test_kept_pictures_are_those_that_generate_draws(tmp_path: Path, generate: Callable[..., list[Path]]) -> None:
    folder = tmp_path / "evaluate"
    assert evaluate(folder, "--prompt", PROMPT, "--seeds", "7", "--ratios", "0.5") == 0
    assert not (folder / "pictures").exists()
    # What was not kept is drawn again when it is asked for.
    assert evaluate(folder, "--prompt", PROMPT, "--seeds", "7", "--ratios", "0.5", "--save-images") == 0
    (kept,) = (folder / "pictures").glob("ours-0-5-*/*")
    (reference,) = (folder / "references").iterdir()
    (merged,) = generate("--seed", "7", folder="merged")
    (plain,) = generate("--seed", "7", "--ratio", "0", folder="plain")
    assert (pixels_of(kept) == pixels_of(merged)).all()
    assert (pixels_of(reference) == pixels_of(plain)).all()


@pytest.mark.once
def test_networks_score_the_pictures(clip: Path, photos: Path, whole: Path, tmp_path: Path) -> None:
    inception = saved(Colours(), tmp_path / "inception")
    given = ["--clip", str(clip), "--inception", str(inception), "--real", str(photos)]
    assert evaluate(tmp_path, *TWO, *BOTH, *given) == 0
    scores = {name: row["scores"] for name, row in found_in(tmp_path).items()}
    for of_one in scores.values():
        assert set(of_one) == {"CLIP score", "Frechet distance (CLIP features)", "FID"}
        assert 0 <= of_one["CLIP score"] <= 100
        assert of_one["Frechet distance (CLIP features)"] > 0
        assert of_one["FID"] > 0
    assert scores["ours 0.5"] != scores["unmerged"]
    assert "| CLIP score | Frechet distance (CLIP features) | FID |" in (tmp_path / "evaluate.md").read_text()
    assert similarity_in(tmp_path) == similarity_in(whole)
    # Real pictures that are the drawn ones are at no distance.
    unmerged = tmp_path / "references"
    assert evaluate(tmp_path, *TWO, *BOTH, "--inception", str(inception), "--real", str(unmerged)) == 0
    scores = {name: row["scores"] for name, row in found_in(tmp_path).items()}
    assert scores["unmerged"]["FID"] == pytest.approx(0, abs=1e-9)
    assert scores["ours 0.5"]["FID"] > 1e-9


def test_pictures_are_resized_for_inception_without_smoothing(tmp_path: Path) -> None:
    """As pytorch-fid does: of every 4x4 pixels the middle four count."""
    network = Inception(saved(Colours(), tmp_path / "inception"))
    pixels = np.zeros((4 * 299, 4 * 299, 3), np.uint8)
    for row, column in ((1, 1), (1, 2), (2, 1), (2, 2)):
        pixels[row::4, column::4] = 255
    Image.fromarray(pixels).save(tmp_path / "dots.png")
    Image.new("RGB", (48, 64), "white").save(tmp_path / "white.png")
    dots, white = network.of_images([tmp_path / "dots.png", tmp_path / "white.png"])
    np.testing.assert_allclose(dots, white, rtol=1e-5, atol=1e-6)


@pytest.mark.once
def test_prompts_come_from_files_each_once(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{ROCKET}\n\na photo of a dog\n{ROCKET}\n")
    folder = tmp_path / "outputs"
    assert evaluate(folder, "--prompts", str(prompts), "--prompt", PROMPT, "--ratios", "0.5") == 0
    samples = found_in(folder)["ours 0.5"]["samples"]
    assert [sample["prompt"] for sample in samples] == [PROMPT, ROCKET, "a photo of a dog"]
    assert [sample["follows_prompt"] is None for sample in samples] == [False, False, True]


@pytest.mark.once
def test_all_that_the_bundled_model_draws_is_drawn_where_no_prompt_is_given(tmp_path: Path) -> None:
    assert main(["evaluate", *SMALL, "--steps", "1", "--ratios", "0.5", "--output", str(tmp_path / "outputs")]) == 0
    samples = found_in(tmp_path / "outputs")["ours 0.5"]["samples"]
    assert [sample["prompt"] for sample in samples] == [prompt_of(subject) for subject in SUBJECTS]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ratios", "0.8"], "below 0.75 for a 2x2 stride"),
        (["--port-ratios", "-1"], "ratio=-1.0 must be at least 0"),
        (["--ratios"], "nothing is to be compared with the unmerged pipeline"),
        (["--configs", "nowhere.json"], "--configs nowhere.json cannot be read"),
        (["--suite", "nowhere.jsonl"], "--suite nowhere.jsonl cannot be read"),
        (["--suite", __file__], "line 1: "),
        (["--seeds", "-1"], "--seeds -1 must be from 0 to 2**62"),
        (["--model", "some/model"], "there is no prompt"),
        (["--prompt", " "], "--prompt ' ' is empty"),
        (["--prompts", "nowhere.txt"], "--prompts nowhere.txt cannot be read"),
        (["--prompts", "/dev/null"], "--prompts /dev/null holds no prompt"),
        (["--height", "100"], "--height 100 must be a multiple of 8"),
        (["--clip", "nowhere"], "--clip nowhere has no config.json, preprocessor_config.json"),
        (["--clip", "openai/clip-vit-base-patch32"], "--clip openai/clip-vit-base-patch32 has no config.json"),
        (["--inception", "nowhere"], "give a folder of them with --real"),
        (["--inception", "nowhere", "--real", "."], "--inception nowhere needs nowhere.pdiparams"),
        (["--real", "."], "--real needs a network"),
        (["--seed", "3"], "'--seed' is not an argument of evaluate; did you mean --seeds?"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(tmp_path, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert sentence in captured.err
    assert list(tmp_path.iterdir()) == []


def test_prompts_in_another_encoding_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("一只猫\n".encode("gbk"))
    assert evaluate(tmp_path / "outputs", "--prompts", str(file)) == 2
    assert f"--prompts {file}: it is not text in UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_port_that_cannot_run_at_a_size_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coarse = ["--port-ratios", "0.5", "--max-downsample", "8", "--height", "72"]
    assert evaluate(tmp_path, "--prompt", PROMPT, *coarse) == 2
    assert "--height 72 must be a multiple of 128 for 'port 0.5, max_downsample 8'" in capsys.readouterr().err
    assert not (tmp_path / "evaluate.jsonl").exists()


def test_networks_that_do_not_fit_are_refused(
    clip: Path, photos: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*given: str) -> str:
        capsys.readouterr()
        assert evaluate(tmp_path / "outputs", "--prompt", PROMPT, "--ratios", "0.5", *given) == 2
        return capsys.readouterr().err

    real = ["--real", str(photos), "--prompt", ROCKET]
    damaged = tmp_path / "damaged"
    shutil.copytree(clip, damaged)
    for path in damaged.glob("model*"):
        path.write_bytes(b"cut off")
    assert "could not be loaded; check that its files are complete" in complaint("--clip", str(damaged))
    saved(Colours(7), tmp_path / "narrow")
    assert "gives features of shape [1, 7]" in complaint("--inception", str(tmp_path / "narrow.pdiparams"), *real)
    saved(Small(), tmp_path / "v1.0", side=8)
    assert "cannot take [batch, 3, 299, 299]" in complaint("--inception", str(tmp_path / "v1.0"), *real)
    (tmp_path / "empty").mkdir()
    assert "holds 0 pictures" in complaint("--clip", str(clip), "--real", str(tmp_path / "empty"), "--prompt", ROCKET)
    assert "add prompts or --seeds" in complaint("--clip", str(clip), "--real", str(photos))
    assert not (tmp_path / "outputs" / "evaluate.jsonl").exists()


@pytest.mark.parametrize("name", ["evaluate.md", "evaluate.json", "evaluate.png", "references/FILE"])
def test_files_of_others_are_not_replaced(
    name: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name.replace("FILE", next((whole / "references").iterdir()).name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"mine")
    assert evaluate(tmp_path, *TWO, *BOTH) == 2
    assert "exists already" in capsys.readouterr().err
    assert path.read_bytes() == b"mine"
    assert not (tmp_path / "evaluate.jsonl").exists()


@pytest.mark.sweep  # generate's ranks run in every commit
def test_two_ranks_divide_the_cases_and_find_the_same(whole: Path, tmp_path: Path) -> None:
    """Paddle's own launcher; each case is drawn once, and rank 0 sums up."""
    arguments = ["evaluate", *SMALL, "--output", str(tmp_path / "out"), *TWO, *BOTH]
    launched = subprocess.run(
        on_ranks(2, tmp_path, "-m", "ppdiffusers_tome", *arguments),
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stdout + launched.stderr
    assert similarity_in(tmp_path / "out") == similarity_in(whole)
    drawn = drawn_in(tmp_path / "out")
    assert sorted(drawn) == sorted(set(drawn)) == sorted(drawn_in(whole))
    assert launched.stdout.count("Fidelity and speed of token merging") == 1
