"""``visualize``: its files, that what is drawn is what merged, and its records for VisualDL."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.recorder import MergeRecord, MergingBlock, record_merging
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.figures.merged_sheets import MergedPicture
from ppdiffusers_tome.tools.figures.merging import groups_picture, merged_share, share_picture
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.conftest import PROMPT, SMALL, heard, pixels_of

SIZE = ["--height", "128", "--width", "128", "--steps", "2"]
FILES = ["visualize-ratios.png", "visualize.json", "visualize.png"]
BLOCK = "down_blocks.0.attentions.0.transformer_blocks.0"
# Of a sheet: its margin, and the gap between its pictures.
MARGIN, GAP = 28, 16


def visualize(folder: Path, *arguments: str, size: list[str] = SIZE) -> dict:
    """Run the command; returns what its JSON holds."""
    given = [] if "--ratios" in arguments else ["--ratios", "0.5"]
    assert main(["visualize", *size, "--prompt", PROMPT, "--output", str(folder), *given, *arguments]) == 0
    return json.loads((folder / "visualize.json").read_text())


def images_of(path: Path) -> dict[str, dict[int, np.ndarray]]:
    """The pictures of a file of VisualDL's records, by tag and step, as its own reader gives them."""
    from visualdl import LogReader

    reader = LogReader(file_path=str(path))
    return {
        tag: {
            entry.id: np.asarray(Image.open(io.BytesIO(entry.image.encoded_image_string)))
            for entry in reader.get_data("image", tag)
        }
        for tag in reader.get_tags()["image"]
    }


def shows(sheet: np.ndarray, line: str, left: int, width: int = 256, colour: str = "rgb(113, 113, 122)") -> bool:
    """Whether a line, of fine print where its colour is not given, is in a column."""
    text = Image.new("RGB", (width, 20), "white")
    ImageDraw.Draw(text).text((0, 3), line, colour, ImageFont.load_default(size=14))
    column = sheet[:, left : left + width]
    return any(np.array_equal(column[top : top + 20], text) for top in range(len(column) - 20))


def test_labels_give_the_method_and_whole_paths(tmp_path):
    visualize(tmp_path / "a", size=SMALL)
    visualize(tmp_path / "b", "--method", "tofu", size=SMALL)
    tome, tofu = (pixels_of(tmp_path / name / "visualize.png") for name in "ab")
    assert shows(tome, "ratio 0.5", MARGIN)
    assert shows(tome, "method tome", MARGIN)
    assert shows(tofu, "ratio 0.5, method tofu", MARGIN)
    assert not shows(tofu, "method tofu", MARGIN)
    for line in ("down_blocks.0.attentions.0.", "transformer_blocks.0"):
        assert shows(tome, line, MARGIN + 256 + GAP)


@pytest.mark.parametrize(("calls", "line"), [(1, "the only step"), (2, "all 2 steps")])
def test_one_step_is_no_steps(calls, line):
    block = MergingBlock("unet", BLOCK, 1)
    record = MergeRecord(block, Grid(1, 4), 0, None, np.array([0, 0, 1, 2], np.int32))
    run = {
        "prompt": PROMPT, "seed": 0, "model": "bundled", "height": 256, "width": 256, "steps": calls,
        "scheduler": "DDIMScheduler", "guidance_scale": 1.5, "dtype": "float32", "tome": {"method": "tome"},
    }  # fmt: skip
    picture = MergedPicture(Image.new("RGB", (256, 256)), {block: [record]}, calls, [0])
    sheet = np.asarray(picture.sheet(run, "ratio 0.5"))
    assert shows(sheet, "1 group, largest 2; 2 not merged", MARGIN + 256 + GAP)
    line = f"{line}: the redder, the more often a token merged"
    assert shows(sheet, line, MARGIN, 2 * 256 + GAP, "rgb(24, 24, 27)")


def test_writes_a_sheet_a_strip_and_numbers(tmp_path, capsys):
    found = visualize(tmp_path, "--ratio", "0.5", "--ratios", "0.25", "0.5")
    captured = capsys.readouterr()
    assert heard(captured.err) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert captured.out.split() == [str(tmp_path / name) for name in (FILES[2], FILES[0], FILES[1])]
    assert read_settings(tmp_path / "visualize.png") == found["run"]
    assert found["run"]["ratio"] == found["run"]["tome"]["ratio"] == 0.5
    assert [row["ratio"] for row in found["ratios"]] == [0.0, 0.25, 0.5]
    assert found["ratios"][0]["psnr_db"] is None
    assert found["ratios"][1]["psnr_db"] > found["ratios"][2]["psnr_db"] > 10
    first = found["merged"][0]
    assert {name: first[name] for name in ("denoiser", "block", "level", "grid", "call", "timestep", "tokens")} == {
        "denoiser": "unet", "block": BLOCK, "level": 1, "grid": [16, 16], "call": 1, "timestep": 999.0, "tokens": 256,
    }  # fmt: skip
    assert {row["merged_away"] for row in found["merged"]} == {128}
    assert {row["call"] for row in found["merged"]} == {1, 2}


def test_groups_drawn_are_those_that_merged(tmp_path):
    """The whole way again: the same picture drawn by hand, its matchings, and each group's colour in the picture."""
    visualize(tmp_path, "--ratio", "0.5", "--ratios", "0.7", "--visualdl", str(tmp_path / "records"))
    from ppdiffusers import StableDiffusionPipeline

    from ppdiffusers_tome import apply_tome
    from ppdiffusers_tome.tools.generation.sampling import generate_image

    pipe = apply_tome(StableDiffusionPipeline.from_pretrained(str(find_model("bundled").folder)), 0.5)
    pipe.set_progress_bar_config(disable=True)
    with record_merging(pipe) as records:
        picture = generate_image(pipe, PROMPT, height=128, width=128, seed=0, steps=2, guidance_scale=1.5)
    pixels = np.asarray(picture).astype(float)
    images = images_of(tmp_path / "records" / "vdlrecords.visualize.log")
    drawn = images[f"groups/unet level 1 {BLOCK}"]
    assert set(drawn) == {1, 2}
    for record in (record for record in records if record.block.path == BLOCK):
        numbers = np.kron(record.groups.reshape(16, 16), np.ones((8, 8), int))
        inner = np.kron(np.ones((16, 16), bool), np.pad(np.ones((6, 6), bool), 1))  # apart from outlines
        for group in range(record.groups.max() + 1):
            own = numbers == group
            mean = pixels[own].mean(axis=0)
            assert np.abs(drawn[record.call + 1][own & inner] - mean).max() <= 0.5 + 1e-6
    # The sheet shows the same, twice as large: a column after the picture's.
    sheet = pixels_of(tmp_path / "visualize.png")
    column = sheet[:, MARGIN + 256 + GAP :][:, :256]
    expected = drawn[1].repeat(2, axis=0).repeat(2, axis=1)
    assert any(np.array_equal(column[top : top + 256], expected) for top in range(len(sheet) - 256))
    assert set(images["ratio in percent"]) == {0, 70}
    share = merged_share([record for record in records if record.block.path == BLOCK], 2)
    expected = np.asarray(share_picture(picture, Grid(16, 16), share))
    assert np.array_equal(images[f"share of the calls/unet level 1 {BLOCK}"][2], expected)


def test_another_ratio_gives_another_picture(tmp_path):
    for ratio in ("0.25", "0.6"):
        visualize(tmp_path / ratio, "--ratio", ratio, size=SMALL)
    pictures = [pixels_of(tmp_path / ratio / "visualize.png") for ratio in ("0.25", "0.6")]
    assert pictures[0].shape == pictures[1].shape
    assert not np.array_equal(*pictures)


def test_levels_blocks_and_steps_are_chosen(tmp_path):
    oblong = ["--height", "64", "--width", "128", "--steps", "3"]
    visualize(tmp_path / "a", "--max-downsample", "4", "--at", "3", size=oblong)
    visualize(tmp_path / "b", "--blocks", "all", "--at", "1", "3", size=oblong)
    visualize(tmp_path / "c", "--blocks", "up_blocks", size=oblong)
    shapes = [pixels_of(tmp_path / name / "visualize.png").shape for name in "abc"]
    # Columns: the picture, and the first block of three levels, or all blocks of the finest, or of those its last.
    found = json.loads((tmp_path / "b" / "visualize.json").read_text())
    blocks = list(dict.fromkeys(row["block"] for row in found["merged"]))
    ups = [block for block in blocks if "up_blocks" in block]
    counts = [1 + 3, 1 + len(blocks), 1 + len(ups)]
    assert 1 < len(ups) < len(blocks)
    assert [shape[1] for shape in shapes] == [2 * MARGIN + count * (256 + GAP) - GAP for count in counts]
    assert shapes[0][0] < shapes[1][0] < shapes[2][0]  # one step, two, three; and the row of all


def test_calls_that_ran_unmerged_show_the_picture_as_it_is(tmp_path):
    size = ["--height", "128", "--width", "128", "--steps", "4"]
    found = visualize(tmp_path, "--end", "0.5", "--at", "4", size=size)
    assert found["calls"] == 4
    assert {row["call"] for row in found["merged"]} == {1, 2}
    sheet = pixels_of(tmp_path / "visualize.png")
    plain, shown = sheet[:, MARGIN:][:, :256], sheet[:, MARGIN + 256 + GAP :][:, :256]
    alike = (plain == shown).all(axis=(1, 2)) & (plain < 255).any(axis=(1, 2))
    first = np.flatnonzero(alike)[0]
    assert alike[first : first + 256].all()
    below = (plain != shown).any(axis=(1, 2))[first + 256 :]
    assert below.sum() >= 256  # the row of all calls


def test_ramps_and_levels_of_a_settings_file_are_shown(tmp_path):
    config = tmp_path / "settings.json"
    config.write_text(json.dumps({"ratio": {"1": [0.6, 0.2], "2": 0.25}}))
    size = ["--height", "128", "--width", "128", "--steps", "4"]
    found = visualize(tmp_path / "out", "--config", str(config), size=size)
    by_level = {level: [row["merged_away"] for row in found["merged"] if row["level"] == level] for level in (1, 2)}
    assert by_level[1] == sorted(by_level[1], reverse=True)
    assert by_level[1][0] > by_level[1][-1]
    assert set(by_level[2]) == {16}


def test_controlnet_is_a_column_of_its_own(tmp_path, photo):
    found = visualize(tmp_path, "--image", str(photo), size=SMALL)
    assert {row["denoiser"] for row in found["merged"]} == {"unet", "controlnet"}
    assert pixels_of(tmp_path / "visualize.png").shape[1] == 2 * MARGIN + 3 * (256 + GAP) - GAP


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ratio", "0"], "--ratio 0 merges nothing, so there is nothing to show"),
        (["--ratio", "0.8"], "ratio=0.8 must be at least 0 and below 0.75"),
        (["--ratios", "0"], "--ratios 0 leaves nothing to compare"),
        (["--ratios", "0.5", "0.9"], "ratio=0.9 must be at least 0 and below 0.75"),
        (["--at", "0"], "--at 0 must be 1 or more"),
        (["--at", "5", "1"], "--at 5 must be at most 1: that is how often the denoiser is called"),
        (["--blocks", "nowhere"], f"is in the name of no block that merges; those that merge: unet.{BLOCK}"),
        (["--prompt", "a photo of a rocket"], "2 prompts were given, and visualize shows one picture"),
        (["--visualdl", __file__], f"--visualdl {__file__} is a file; give a folder"),
        (["--method", "todo"], "choose a --method that does, such as tome"),
        (["--height", "8", "--width", "8"], "none of the blocks to show merged tokens into groups"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(arguments, sentence, tmp_path, capsys):
    given = ["visualize", *SMALL, "--prompt", PROMPT, "--output", str(tmp_path), *arguments]
    assert main(given) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err.splitlines()[-1]
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_replaced_only_when_asked(tmp_path, capsys):
    given = ["visualize", *SMALL, "--prompt", PROMPT, "--ratios", "0.7"]
    given += ["--output", str(tmp_path / "out"), "--visualdl", str(tmp_path / "records")]
    assert main(given) == 0
    written = [*(tmp_path / "out" / name for name in FILES), tmp_path / "records" / "vdlrecords.visualize.log"]
    held = {path: path.read_bytes() for path in written}
    for kept in written:
        for path in written:
            path.unlink(missing_ok=True)
        kept.write_bytes(held[kept])
        assert main(given) == 2
        assert f"{kept} exists already" in capsys.readouterr().err
        assert list(tmp_path.rglob("*.*")) == [kept]
        assert kept.read_bytes() == held[kept]
    assert main([*given, "--seed", "3", "--overwrite"]) == 0
    assert json.loads((tmp_path / "out" / "visualize.json").read_text())["run"]["seed"] == 3


def test_records_beside_others_are_refused(tmp_path, capsys):
    (tmp_path / "vdlrecords.1.log").write_bytes(b"a training's")
    given = ["visualize", "--prompt", PROMPT, "--output", str(tmp_path / "out"), "--visualdl", str(tmp_path)]
    assert main([*given, "--overwrite"]) == 2
    assert "holds vdlrecords.1.log, and VisualDL shows one file of records a folder" in capsys.readouterr().err


def test_missing_visualdl_is_named_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "visualdl", None)  # as if it were not installed
    given = ["visualize", "--prompt", PROMPT, "--output", str(tmp_path / "out"), "--visualdl", str(tmp_path / "v")]
    assert main(given) == 2
    assert "--visualdl needs the package visualdl; install it with: pip install visualdl" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_visualdl_need_not_be_there_for_those_who_do_not_ask(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "visualdl", None)
    visualize(tmp_path, size=SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


class TestDrawing:
    def record(self, height: int, width: int, groups: list[int]) -> MergeRecord:
        block = MergingBlock("unet", BLOCK, 1)
        return MergeRecord(block, Grid(height, width), 0, None, np.array(groups, np.int32))

    def test_a_group_is_one_colour_wherever_its_tokens_are_and_singles_have_no_outline(self):
        pixels = np.zeros((8, 32, 3), np.uint8)
        pixels[:, :8], pixels[:, 16:24], pixels[:, 24:] = 200, 100, 50
        drawn = np.asarray(groups_picture(Image.fromarray(pixels), self.record(1, 4, [0, 1, 0, 2])))
        assert (drawn[:, :7] == 150).all()
        assert (drawn[:, 17:23] == 150).all()
        assert (drawn[:, 8:16] == 0).all()
        assert (drawn[:, 24:] == 50).all()
        outline = drawn[0, 7]
        assert np.ptp(outline) > 100  # a vivid colour, the same on all borders of the group
        assert (drawn[:, [7, 16, 23]] == outline).all()

    @pytest.mark.parametrize(("pixels", "tokens", "covered"), [(264, 17, 16), (40, 3, 16), (64, 8, 8), (60, 7, None)])
    def test_tokens_cover_what_their_level_says(self, pixels, tokens, covered):
        grey = Image.new("RGB", (8, pixels))
        share = np.linspace(0, 1, tokens)[:, None]
        drawn = np.asarray(share_picture(grey, Grid(tokens, 1), share))[:, 0]
        borders = np.flatnonzero((drawn[1:] != drawn[:-1]).any(axis=-1)) + 1
        assert len(borders) == tokens - 1
        if covered is None:
            assert np.diff(borders).min() >= pixels // tokens
        else:
            assert (borders == covered * np.arange(1, tokens)).all()

    def test_outlines_survive_a_large_pictures_reduction(self):
        large = groups_picture(Image.new("RGB", (2048, 1024)), self.record(1, 2, [0, 0]))
        assert not np.asarray(large).any()  # one group has no border
        two = np.asarray(groups_picture(Image.new("RGB", (2048, 1024)), self.record(1, 4, [0, 0, 1, 1])))
        assert two.any(axis=-1)[0].sum() == 2 * 4

    def test_share_is_of_all_calls_also_those_that_ran_unmerged(self):
        share = merged_share([self.record(1, 4, [0, 0, 1, 2]), self.record(1, 4, [0, 0, 1, 1])], calls=4)
        assert share.tolist() == [[0.5, 0.5, 0.25, 0.25]]
