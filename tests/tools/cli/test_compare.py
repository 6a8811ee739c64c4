"""``compare``: its three files, and that its columns differ in the ratio alone."""

from __future__ import annotations

import json
import math

import numpy as np
import paddle
import pytest
from PIL import Image, ImageDraw, ImageFont

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.demo_model import PROMPTS
from ppdiffusers_tome.tools.demo_model.photographs import subject_of
from ppdiffusers_tome.tools.evaluate.configurations import ours, unmerged
from ppdiffusers_tome.tools.evaluate.samples import Case, Sample
from ppdiffusers_tome.tools.evaluate.summary import rows, table
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, _text, make_sheet
from ppdiffusers_tome.tools.generation.edges import compute_photograph_edges
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.images import read_settings
from ppdiffusers_tome.tools.measure.similarity import Similarity, format_psnr
from tools.cli.conftest import PROMPT, SMALL, Gone, heard, pixels_of

MIB = 2**20
ROCKET = "a photo of a rocket"
FEW = ["--ratios", "0.5", "0.7", "--prompt", PROMPT, "--prompt", ROCKET]


def names_in(found: dict) -> list[str]:
    return [row["configuration"]["name"] for row in found["configurations"]]


def test_text_to_image_writes_sheet_and_tables(tmp_path, capsys):
    assert main(["compare", *SMALL, *FEW, "--steps", "2", "--seed", "5", "--output", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert heard(captured.err) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.json", "compare.md", "compare.png"]
    found = json.loads((tmp_path / "compare.json").read_text())
    unmerged, half, most = found["configurations"]
    assert unmerged["configuration"]["tome"] is None
    assert [row["configuration"]["tome"]["ratio"] for row in (half, most)] == [0.5, 0.7]
    for row in (unmerged, half, most):
        assert [(sample["prompt"], sample["seed"]) for sample in row["samples"]] == [(PROMPT, 5), (ROCKET, 6)]
        assert row["seconds"]["median"] > 0
        assert row["block_seconds"] is None
    assert unmerged["speed_up"]["median"] == 1.0
    assert unmerged["psnr_db"] is unmerged["ssim"] is None
    assert half["psnr_db"]["median"] > 10
    assert most["ssim"]["high"] <= 1
    assert found["run"]["seed"] == 5
    assert read_settings(tmp_path / "compare.png") == found["run"]
    written = (tmp_path / "compare.md").read_text()
    for name in ("unmerged", "ratio 0.5", "ratio 0.7"):
        assert f"| {name} |" in written
        assert any(line.strip().startswith(name) for line in captured.out.splitlines())


def test_controlnet_without_a_picture_draws_the_edges_of_what_each_prompt_names(tmp_path, monkeypatch):
    drawn, draw = {}, LoadedPipeline.generate

    def spied(self, prompt, number, edges, **given):
        assert np.array_equal(drawn.setdefault(prompt, edges), edges)
        return draw(self, prompt, number, edges, **given)

    monkeypatch.setattr(LoadedPipeline, "generate", spied)
    arguments = ["compare", *SMALL, "--ratios", "0.5", "--controlnet", "bundled", "--output", str(tmp_path)]
    assert main(arguments) == 0
    subjects = [subject_of(prompt) for prompt in PROMPTS]
    assert list(drawn) == list(PROMPTS)
    found = json.loads((tmp_path / "compare-controlnet.json").read_text())
    names = [subject.name for subject in subjects]
    assert found["run"]["controlnet"] == {"model": "bundled", "scale": 1.0, "edges": {"photographs": names}}
    for row in found["configurations"]:
        assert [sample["prompt"] for sample in row["samples"]] == list(PROMPTS)
    # Three columns of pictures, scaled from 64 to 256 pixels: the edges are the first, white on black.
    sheet = pixels_of(tmp_path / "compare-controlnet.png")
    assert sheet.shape[1] == 2 * 28 + 3 * 256 + 2 * 16
    column = sheet[:, 28 : 28 + 256]
    shown = column[(column == 0).all(-1).mean(1) > 0.1]
    assert len(shown) == 3 * 256
    for subject, used, row in zip(subjects, drawn.values(), np.split(shown, 3), strict=True):
        edges = compute_photograph_edges(subject, 64, 64)
        assert np.array_equal(used, edges)
        assert np.corrcoef(row.ravel(), np.asarray(edges.resize((256, 256))).ravel())[0, 1] > 0.9


def test_a_controlnet_needs_a_picture_where_a_prompt_names_no_photograph(tmp_path, capsys):
    arguments = ["compare", *SMALL, "--controlnet", "bundled", "--prompt", PROMPT, "--prompt", "a photo of a dog"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "'a photo of a dog' names none" in said
    assert "--image" in said
    assert not (tmp_path / "out").exists()


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
    assert names_in(found) == ["unmerged", "ratio 0.5", "fast", "mine"]
    assert found["run"]["tome"]["mine"]["method"] == "prune"
    assert found["run"]["tome"]["unmerged"] is None
    assert main([*arguments, "--output", str(tmp_path / "alone")]) == 0
    found = json.loads((tmp_path / "alone" / "compare.json").read_text())
    assert names_in(found) == ["unmerged", "fast", "mine"]


def test_two_columns_of_one_name_are_refused(tmp_path, capsys):
    ToMeConfig(0.3).save(tmp_path / "fast.json")
    arguments = ["--configs", "fast", str(tmp_path / "fast.json"), "--output", str(tmp_path / "out")]
    assert main(["compare", *SMALL, *arguments]) == 2
    assert "two different configurations are called 'fast'; rename one of them" in capsys.readouterr().err


def test_both_comparisons_fit_in_one_folder(tmp_path):
    few = [*SMALL, "--ratios", "0.5", "--prompt", PROMPT, "--output", str(tmp_path)]
    assert main(["compare", *few]) == 0
    assert main(["compare", *few, "--controlnet", "bundled"]) == 0
    assert len(list(tmp_path.iterdir())) == 6


def test_unmerged_column_is_what_generate_draws(tmp_path, generate, monkeypatch):
    from ppdiffusers_tome.tools.generation import sampling

    drawn, draw = [], sampling.generate_image

    def noted(pipe, prompt, **arguments):
        picture = draw(pipe, prompt, **arguments)
        drawn.append((pipe.tome, arguments["seed"], arguments["steps"], picture))
        return picture

    monkeypatch.setattr(sampling, "generate_image", noted)
    assert main(["compare", *SMALL, *FEW, "--steps", "2", "--output", str(tmp_path / "compare")]) == 0
    measured = drawn[3:]  # behind one warm-up a ratio
    assert [(tome.config.ratio if tome else 0, seed) for tome, seed, _, _ in measured] == [
        (0, 0), (0.5, 0), (0.7, 0), (0, 1), (0.5, 1), (0.7, 1),
    ]  # fmt: skip
    assert [steps for _, _, steps, _ in drawn] == [1] * 3 + [2] * 6
    files = generate("--ratio", "0", "--steps", "2", prompts=(PROMPT, ROCKET))
    for file, (_, _, _, picture) in zip(files, measured[::3], strict=True):
        with Image.open(file) as generated:
            assert generated.tobytes() == picture.tobytes()


def test_default_prompts_name_different_photographs():
    assert len({subject_of(prompt) for prompt in PROMPTS} - {None}) == len(PROMPTS)


def test_results_are_summed_up_by_medians_and_highest_peak():
    """A speed-up is of one prompt, whose unmerged picture was drawn beside it."""

    def samples(name: str, *drawn: tuple[float, int | None, Similarity | None]) -> list[Sample]:
        return [
            Sample(name, Case("p", seed), 1, GeneratedImage(None, seconds, peak, peak, similarity))
            for seed, (seconds, peak, similarity) in enumerate(drawn)
        ]

    half = ours(ToMeConfig(0.5), "ratio 0.5")
    drawn = {
        "unmerged": samples("unmerged", (2.0, 5 * MIB, None), (4.0, 6 * MIB, None), (9.0, 4 * MIB, None)),
        "ratio 0.5": samples(
            "ratio 0.5", (1.0, 3 * MIB, Similarity(20.0, 0.8, 0.3)), (2.0, None, Similarity(math.inf, 1.0, 0.0)),
            (3.0, 3 * MIB, Similarity(30.0, 0.9, 0.1)),
        ),
    }  # fmt: skip
    plain, merged = found = rows([unmerged(), half], drawn, drawn["unmerged"])
    assert (plain.seconds.median, plain.speed_up.median, plain.peak_bytes, plain.psnr) == (4.0, 1.0, 6 * MIB, None)
    assert (merged.seconds.median, merged.psnr.median, merged.ssim.median) == (2.0, 30.0, 0.9)
    assert (merged.speed_up.low, merged.speed_up.median, merged.speed_up.high) == (2.0, 2.0, 3.0)
    assert merged.peak_bytes is None
    written = table(found).markdown()
    assert "| unmerged | 4.00 s | 1.00x | 6 MiB | 6 MiB | - | - | - |" in written
    assert "| ratio 0.5 | 2.00 s | 2.00x | not measured | not measured | 30.0 (20.0) | 0.900 | 0.100 |" in written
    assert [sample["psnr_db"] for sample in merged.to_dict()["samples"]] == [20.0, None, 30.0]
    assert format_psnr(math.inf) == "identical"


def test_nothing_is_lost_when_nobody_reads_the_output(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", Gone())
    code = main(["compare", *SMALL, "--ratios", "0.5", "--prompt", PROMPT, "--steps", "1", "--output", str(tmp_path)])
    monkeypatch.undo()
    assert code == 141
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.json", "compare.md", "compare.png"]


@pytest.mark.parametrize("width", range(280, 600, 16))
@pytest.mark.parametrize("larger", [1, 1.2, 1.5])
def test_no_letter_of_a_sheet_is_cut_off(width, larger):
    """Titles, labels and captions, at the sizes that they have over and under pictures."""
    size = max(14, width // 20) * larger
    whole = Image.new("L", (width, 4 * width), 255)
    ImageDraw.Draw(whole).text((0, width), "gjpqy", 0, ImageFont.load_default(size=round(size)))
    text = _text("gjpqy", size, (0, 0, 0), width).convert("L")
    assert (np.asarray(text) < 255).sum() == (np.asarray(whole) < 255).sum()


@pytest.mark.parametrize(("size", "air"), [(256, 3), (512, 5)])
def test_sheet_leaves_air_between_a_prompt_and_its_pictures(size, air):
    red = Image.new("RGB", (size, size), "red")
    sheet = np.asarray(make_sheet(Label("Title"), [Label("column")], [("gjyp, a prompt, |", [Cell(red)])]))
    top = np.flatnonzero((sheet == (255, 0, 0)).all(-1).any(1))[0]
    blank = (sheet[:top] == 255).all((1, 2))
    assert air <= np.argmin(blank[::-1]) <= 2 * air


@pytest.mark.parametrize(
    "broken",
    [
        "my_settings_for_the_second_ experiment_2026", "down_blocks.0.attentions.0. transformer_blocks.0",
        "outputs/experiments/ 2026-11-22_second/settings", "x " + "W" * 19 + " " + "W" * 11,
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["columns", "captions"])
def test_sheet_breaks_words_that_are_wider_than_their_column(broken, where):
    """As if there were a space in them, behind a dot, a slash or such where there is one."""

    def sheet(text: str) -> np.ndarray:
        column = Label("column", (text,) if where == "columns" else ())
        cell = Cell(Image.new("RGB", (256, 256)), text if where == "captions" else "")
        return np.asarray(make_sheet(Label("Title"), [column], [("a prompt", [cell])]))

    first, _, last = broken.rpartition(" ")
    assert np.array_equal(sheet(first + last), sheet(broken))
