"""``evaluate``: its files, that a stopped run resumes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ppdiffusers_tome.tools.cli.commands import evaluate as command
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.console.parsing import Parser
from ppdiffusers_tome.tools.evaluate import runner
from ppdiffusers_tome.tools.generation import sampling
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.generation.settings import parse_settings
from tools.cli.conftest import PROMPT, ROCKET, SMALL, heard, pixels_of

TWO = ["--prompt", PROMPT, "--prompt", ROCKET]
BOTH = ["--ratios", "0.5", "--configs", "quality"]
NAMES = ["unmerged", "ratio 0.5", "quality"]


def evaluate(folder: Path, *arguments: str) -> int:
    return main(["evaluate", *SMALL, "--output", str(folder), *arguments])


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results by the name of the configuration."""
    content = json.loads((folder / "evaluate.json").read_text())
    return {row["configuration"]["name"]: row for row in content["configurations"]}


def read_similarity(folder: Path) -> dict[tuple[str, str, int], tuple[float | None, float | None]]:
    return {
        (name, sample["prompt"], sample["seed"]): (sample["psnr_db"], sample["ssim"])
        for name, row in read_rows(folder).items()
        for sample in row["samples"]
    }


def read_keys(folder: Path) -> list[list[Any]]:
    """Return prompt and seed of every measured case, in the order of the ledger."""
    _, *lines = map(json.loads, (folder / "evaluate.jsonl").read_text().splitlines())
    return [line["key"] for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An evaluation of two prompts that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert evaluate(folder, *TWO, *BOTH) == 0
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_everything_is_measured_and_written(whole):
    rows = read_rows(whole)
    assert list(rows) == NAMES
    for row in rows.values():
        assert row["seconds"]["median"] > 0
        assert [sample["prompt"] for sample in row["samples"]] == [PROMPT, ROCKET]
    assert rows["unmerged"]["speed_up"] == {"median": 1, "low": 1, "high": 1, "interval": None}
    assert rows["unmerged"]["psnr_db"] is None
    assert all(10 < rows[name]["psnr_db"]["median"] < 60 for name in NAMES[1:])
    table = (whole / "evaluate.md").read_text()
    assert "photographs model, 64x64 pixels, 1 step," in table
    assert all(f"| {name} | " in table for name in NAMES)
    with Image.open(whole / "evaluate.png") as image:
        assert len(image.getcolors(10**6)) > 10
    assert {path.name for path in whole.iterdir()} == {
        "evaluate.md", "evaluate.json", "evaluate.jsonl", "evaluate.png", "references",
    }  # fmt: skip
    assert len(list((whole / "references").iterdir())) == 2


def test_a_stopped_run_resumes_and_more_prompts_and_seeds_are_added(whole, tmp_path, capsys, monkeypatch):
    generate_image, left = sampling.generate_image, [None] * 7  # three warm-ups, and four images of two prompts

    def stop(*given: Any, **settings: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return generate_image(*given, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(sampling, "generate_image", stop)
        assert evaluate(tmp_path, *TWO, *BOTH) == 130
    assert read_keys(tmp_path) == [[PROMPT, 0]]
    assert not (tmp_path / "evaluate.json").exists()
    capsys.readouterr()
    assert evaluate(tmp_path, *TWO, *BOTH) == 0
    # The configuration after the unmerged image changes from case to case.
    said = [line for line in heard(capsys.readouterr().err) if line.startswith("image ")]
    assert [line.split(", ")[1] for line in said] == ["unmerged", "quality", "ratio 0.5"]
    assert read_similarity(tmp_path) == read_similarity(whole)
    assert evaluate(tmp_path, "--prompt", PROMPT, *BOTH, "--seeds", "0", "3") == 0
    assert read_keys(tmp_path) == [[PROMPT, 0], [ROCKET, 0], [PROMPT, 3]]
    before, after = read_similarity(whole), read_similarity(tmp_path)
    assert after["ratio 0.5", PROMPT, 0] == before["ratio 0.5", PROMPT, 0] != after["ratio 0.5", PROMPT, 3]


def test_results_of_other_settings_are_refused_and_overwritten_on_demand(whole, copy, capsys):
    for other, words in (
        (["--steps", "2"], "was measured with steps=1 and this run has 2"),
        (["--cache", "0.5"], "was measured with configurations=["),
    ):
        assert evaluate(copy, *TWO, *BOTH, *other) == 2
        assert words in capsys.readouterr().err
    assert read_keys(copy) == read_keys(whole)
    assert evaluate(copy, "--prompt", PROMPT, "--ratios", "0.5", "--steps", "2", "--overwrite") == 0
    assert read_keys(copy) == [[PROMPT, 0]]
    (reference,) = [path for path in (whole / "references").iterdir() if "cat" in path.name]
    assert (pixels_of(reference) != pixels_of(copy / "references" / reference.name)).any()


def test_saved_images_are_those_of_generate_and_seconds_are_compared_with_the_last_unmerged_one(
    tmp_path, generate, monkeypatch
):
    monkeypatch.setattr(runner, "IMAGES_PER_REFERENCE", 2)
    arguments = (tmp_path / "evaluate", "--prompt", PROMPT, "--seeds", "7", "--ratios", "0.3", "0.5", "0.7")
    assert evaluate(*arguments, "--save-images") == 0
    (kept,) = (tmp_path / "evaluate" / "images").glob("ratio-0-5-*/*")
    (reference,) = (tmp_path / "evaluate" / "references").iterdir()
    plain, *merged = [row["samples"][0] for row in read_rows(tmp_path / "evaluate").values()]
    assert [sample["unmerged_seconds"] == plain["seconds"] for sample in merged] == [True, True, False]
    for path, ratio in ((kept, "0.5"), (reference, "0")):
        (image,) = generate("--seed", "7", "--ratio", ratio, folder=ratio)
        assert (pixels_of(path) == pixels_of(image)).all()


def test_prompts_come_from_files_or_are_all_subjects(tmp_path):
    prompts, parser = tmp_path / "prompts.txt", Parser(prog="x")
    command.add_arguments(parser)
    prompts.write_text(f"{ROCKET}\n\na photo of a dog\n{ROCKET}\n")
    for given, expected in (
        (["--prompts", str(prompts), "--prompt", PROMPT], [PROMPT, ROCKET, "a photo of a dog"]),
        ([], [*find_model("photographs").prompts]),
    ):
        args = parser.parse_args(given)
        assert command._parse_prompts(args, parse_settings(args, 0.0)) == expected
