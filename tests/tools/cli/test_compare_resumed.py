"""``compare`` that goes on with earlier results: what is kept, drawn again and refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ppdiffusers_tome.tools.compare import run
from ppdiffusers_tome.tools.generation import loaded_pipeline, loading
from ppdiffusers_tome.tools.images import write_image
from tools.cli.helpers import PROMPT, ROCKET, compare, heard, pixels_of, read_rows

TWO = ["--prompt", PROMPT, "--prompt", ROCKET]
BOTH = ["--ratios", "0.5", "--configs", "quality"]


def read_similarity(folder: Path) -> dict[tuple[str, str, int], tuple[float | None, float | None]]:
    return {
        (name, sample["prompt"], sample["seed"]): (sample["psnr_db"], sample["ssim"])
        for name, row in read_rows(folder).items()
        for sample in row["samples"]
    }


def read_keys(folder: Path) -> list[list[Any]]:
    """Return prompt and seed of every measured case, in the order of the ledger."""
    _, *lines = map(json.loads, (folder / "compare.jsonl").read_text().splitlines())
    return [line["key"] for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A comparison of two prompts that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert compare(folder, *TWO, *BOTH) == 0
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_stopped_run_resumes_and_more_prompts_and_seeds_are_added(whole, tmp_path, capsys, monkeypatch):
    generate_image, left = loaded_pipeline.generate_image, [None] * 7  # three warm-ups, and four images of two prompts

    def stop(*given: Any, **settings: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return generate_image(*given, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(loaded_pipeline, "generate_image", stop)
        assert compare(tmp_path, *TWO, *BOTH) == 130
    assert read_keys(tmp_path) == [[PROMPT, 0], [ROCKET, 0]]
    assert not (tmp_path / "compare.json").exists()
    assert capsys.readouterr().out == f"kept: 4 images of 6 in {tmp_path}; the same command goes on\n"
    assert compare(tmp_path, *TWO, *BOTH) == 0
    captured = capsys.readouterr()
    assert f"kept: 4 images of {tmp_path}; --overwrite generates all again\n" in captured.out
    said = [line.split(":")[0] for line in heard(captured.err)]
    assert said == [f"{ROCKET}, {name}" for name in ("ratio 0.5", "quality")]
    assert read_similarity(tmp_path) == read_similarity(whole)
    assert compare(tmp_path, "--prompt", PROMPT, *BOTH, "--seeds", "0", "3") == 0
    assert read_keys(tmp_path) == [[PROMPT, 0], [ROCKET, 0], [PROMPT, 3]]
    before, after = read_similarity(whole), read_similarity(tmp_path)
    assert after["ratio 0.5", PROMPT, 0] == before["ratio 0.5", PROMPT, 0] != after["ratio 0.5", PROMPT, 3]


@pytest.mark.parametrize(("gone", "drawn"), [
    ("", ("unmerged", "ratio 0.5", "quality")),
    pytest.param("unmerged-*", ("unmerged", "ratio 0.5", "quality"), marks=pytest.mark.sweep),
    pytest.param("quality-*", ("quality",), marks=pytest.mark.sweep),
])  # fmt: skip
def test_images_that_are_gone_are_drawn_again(whole, copy, gone, drawn, capsys):
    for path in [copy / "images"] if not gone else copy.glob(f"images/{gone}"):
        shutil.rmtree(path)
    capsys.readouterr()
    assert compare(copy, *TWO, *BOTH) == 0
    said = [line.split(":")[0] for line in heard(capsys.readouterr().err)]
    assert said == [f"{prompt}, {name}" for prompt in (PROMPT, ROCKET) for name in drawn]
    assert read_similarity(copy) == read_similarity(whole)


@pytest.mark.parametrize("option", [[], ["--overwrite"]])
def test_old_numbers_do_not_stay_beside_new_images(copy, option, monkeypatch):
    """Killed as soon as the first new image is written."""
    shutil.rmtree(copy / "images")

    def write_and_stop(*arguments: Any) -> None:
        write_image(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "write_image", write_and_stop)
    assert compare(copy, *TWO, *BOTH, *option) == 130
    assert {path.name for path in copy.iterdir()} - {"compare.jsonl"} == {"images"}
    ledger = copy / "compare.jsonl"
    assert not ledger.exists() or not any(json.loads(line)["result"] for line in ledger.read_text().splitlines()[1:])


def test_results_of_other_settings_are_refused_before_loading(whole, copy, model, capsys, monkeypatch):
    remedy = f"give another --output, or --overwrite to start over: {copy}/compare.jsonl was measured with"
    (model / "model_index.json").touch()  # of the same name
    monkeypatch.setattr(loading, "load_for_prompts", lambda *_: pytest.fail("the model was loaded"))
    for given, words in (
        (["--steps", "2"], "steps 1, and this run has 2"), (["--cache", "0.5"], "other configurations"),
        (["--model", str(model)], "other model files"),
    ):  # fmt: skip
        capsys.readouterr()
        assert compare(copy, *TWO, *BOTH, *given) == 2
        assert heard(capsys.readouterr().err)[-1] == f"ppdiffusers-tome: error: {remedy} {words}"


def test_results_of_other_settings_are_overwritten_on_demand(whole, copy):
    assert compare(copy, "--prompt", PROMPT, "--ratios", "0.5", "--steps", "2", "--overwrite") == 0
    assert read_keys(copy) == [[PROMPT, 0]]
    (image,) = (path.relative_to(whole) for path in whole.glob("images/unmerged-*/*cat*"))
    assert (pixels_of(whole / image) != pixels_of(copy / image)).any()
