"""``compare``: its three files, and that its columns differ in the ratio alone."""

from __future__ import annotations

import json
import math

import paddle
import pytest
from PIL import Image

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.bundled.scenes import parse_prompt
from ppdiffusers_tome.tools.cli import main
from ppdiffusers_tome.tools.commands import compare
from ppdiffusers_tome.tools.drawing.picture_files import read_settings
from ppdiffusers_tome.tools.figures.comparison import PictureResult, as_json, by_setting, format_psnr, markdown
from ppdiffusers_tome.tools.measuring.similarity import Similarity
from tools.commands.conftest import PROMPT, SMALL, pixels_of

MIB = 2**20
STAR = "a white star on a black background"
FEW = ["--ratios", "0.5", "0.7", "--prompt", PROMPT, "--prompt", STAR]


def test_text_to_image_writes_sheet_and_tables(tmp_path, capsys):
    assert main(["compare", *SMALL, *FEW, "--steps", "2", "--seed", "5", "--output", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.json", "compare.md", "compare.png"]
    found = json.loads((tmp_path / "compare.json").read_text())
    assert [row["ratio"] for row in found["ratios"]] == [0.0, 0.5, 0.7]
    assert [(row["prompt"], row["ratio"]) for row in found["pictures"]] == [
        (prompt, ratio) for prompt in (PROMPT, STAR) for ratio in (0.0, 0.5, 0.7)
    ]
    unmerged, half, most = found["ratios"]
    assert unmerged["speed_up"] == 1.0
    assert unmerged["psnr_db"] is unmerged["ssim"] is None
    assert half["psnr_db"] > 10
    assert most["ssim"] <= 1
    assert all(row["seconds_per_image"] > 0 for row in found["ratios"])
    assert found["run"]["seed"] == 5
    assert read_settings(tmp_path / "compare.png") == found["run"]
    table = (tmp_path / "compare.md").read_text()
    assert table in captured.out
    for name in ("| unmerged |", "| ratio 0.5 |", "| ratio 0.7 |"):
        assert name in table


def test_controlnet_without_a_picture_draws_its_edges(tmp_path):
    arguments = ["compare", *SMALL, "--ratios", "0.5", "--controlnet", "bundled", "--output", str(tmp_path)]
    assert main(arguments) == 0
    found = json.loads((tmp_path / "compare-controlnet.json").read_text())
    assert found["run"]["controlnet"] == {"model": "bundled", "scale": 1.0, "edges": "drawn scene"}
    assert {row["prompt"] for row in found["pictures"]} == set(compare.CONTROLNET_PROMPTS)
    # Three columns of pictures, scaled from 64 to 256 pixels: the edges are the first, white on black.
    sheet = pixels_of(tmp_path / "compare-controlnet.png")
    assert sheet.shape[1] == 2 * 28 + 3 * 256 + 2 * 16
    column = sheet[:, 28 : 28 + 256]
    assert (column == 0).all(-1).mean() > 0.3


def test_controlnet_with_a_photo(tmp_path, photo):
    arguments = ["compare", *SMALL, "--ratios", "0.5", "--prompt", PROMPT, "--image", str(photo)]
    assert main([*arguments, "--output", str(tmp_path / "outputs")]) == 0
    found = json.loads((tmp_path / "outputs" / "compare-controlnet.json").read_text())
    assert found["run"]["controlnet"]["edges"]["file"] == "photo.png"


@pytest.mark.skipif(paddle.get_device() != "cpu", reason="on a GPU the default processor is no plain one")
def test_chunked_attention_is_among_the_settings(tmp_path):
    arguments = ["compare", *SMALL, "--ratios", "0.5", "--prompt", PROMPT, "--chunked-attention"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "compare.json").read_text())["run"]["chunked_attention"] is True


def test_presets_and_files_are_columns_too(tmp_path):
    ToMeConfig(0.3, method="prune").save(tmp_path / "mine.json")
    arguments = ["compare", *SMALL, "--prompt", PROMPT, "--configs", "fast", str(tmp_path / "mine.json")]
    assert main([*arguments, "--ratios", "0.5", "--output", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [row["name"] for row in found["ratios"]] == ["unmerged", "ratio 0.5", "fast", "mine"]
    assert found["run"]["tome"]["mine"]["method"] == "prune"
    assert found["run"]["tome"]["unmerged"] is None
    assert main([*arguments, "--output", str(tmp_path / "alone")]) == 0
    found = json.loads((tmp_path / "alone" / "compare.json").read_text())
    assert [row["name"] for row in found["ratios"]] == ["unmerged", "fast", "mine"]


def test_two_columns_of_one_name_are_refused(tmp_path, capsys):
    ToMeConfig(0.3).save(tmp_path / "fast.json")
    arguments = ["--configs", "fast", str(tmp_path / "fast.json"), "--output", str(tmp_path / "out")]
    assert main(["compare", *SMALL, *arguments]) == 2
    assert "another column is called 'fast' already" in capsys.readouterr().err


def test_both_comparisons_fit_in_one_folder(tmp_path):
    few = [*SMALL, "--ratios", "0.5", "--prompt", PROMPT, "--output", str(tmp_path)]
    assert main(["compare", *few]) == 0
    assert main(["compare", *few, "--controlnet", "bundled"]) == 0
    assert len(list(tmp_path.iterdir())) == 6


def test_unmerged_column_is_what_generate_draws(tmp_path, generate, monkeypatch):
    from ppdiffusers_tome.tools.drawing import sampling

    drawn, draw = [], sampling.draw

    def noted(pipe, prompt, **arguments):
        picture = draw(pipe, prompt, **arguments)
        drawn.append((pipe.tome, arguments["seed"], arguments["steps"], picture))
        return picture

    monkeypatch.setattr(sampling, "draw", noted)
    assert main(["compare", *SMALL, *FEW, "--steps", "2", "--output", str(tmp_path / "compare")]) == 0
    measured = drawn[3:]  # behind one warm-up a ratio
    assert [(tome.config.ratio if tome else 0, seed) for tome, seed, _, _ in measured] == [
        (0, 0), (0.5, 0), (0.7, 0), (0, 1), (0.5, 1), (0.7, 1),
    ]  # fmt: skip
    assert [steps for _, _, steps, _ in drawn] == [1] * 3 + [2] * 6
    files = generate("--ratio", "0", "--steps", "2", prompts=(PROMPT, STAR))
    for file, (_, _, _, picture) in zip(files, measured[::3], strict=True):
        with Image.open(file) as generated:
            assert generated.tobytes() == picture.tobytes()


@pytest.mark.parametrize("prompt", compare.PROMPTS + compare.CONTROLNET_PROMPTS)
def test_default_prompts_are_in_the_models_language(prompt):
    parse_prompt(prompt)


def test_default_prompts_are_new_to_the_model():
    assert all(parse_prompt(prompt).held_out for prompt in compare.PROMPTS)


def test_results_are_summed_up_by_medians_and_highest_peak():
    def result(ratio: float, seconds: float, peak: int | None, quality: Similarity | None) -> PictureResult:
        return PictureResult("p", f"ratio {ratio:g}" if ratio else "unmerged", ratio, seconds, peak, peak, quality)

    pictures = [
        result(0.0, 2.0, 5 * MIB, None), result(0.0, 4.0, 6 * MIB, None), result(0.0, 9.0, 4 * MIB, None),
        result(0.5, 1.0, 3 * MIB, Similarity(20.0, 0.8)), result(0.5, 2.0, None, Similarity(math.inf, 1.0)),
        result(0.5, 3.0, 3 * MIB, Similarity(30.0, 0.9)),
    ]  # fmt: skip
    unmerged, half = summary = by_setting(pictures)
    assert (unmerged.seconds, unmerged.speed_up, unmerged.peak_bytes, unmerged.psnr) == (4.0, 1.0, 6 * MIB, None)
    assert (half.seconds, half.speed_up, half.psnr, half.ssim) == (2.0, 2.0, 30.0, 0.9)
    assert half.peak_bytes is None
    table = markdown("Title", ["a note"], summary)
    assert "| unmerged | 4.00 | 1.00x | 6 MiB | 6 MiB | - | - |" in table
    assert "| ratio 0.5 | 2.00 | 2.00x | not measured | not measured | 30.0 | 0.900 |" in table
    assert as_json(summary, pictures)["pictures"][4]["psnr_db"] is None
    assert format_psnr(math.inf) == "identical"
