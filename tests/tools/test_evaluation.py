"""What an evaluation is made of: configurations, the clock in the blocks, one measurement, the frontier, distances."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tiny
from ppdiffusers_tome import ToMeConfig, applied_tome, apply_tome
from ppdiffusers_tome.errors import NothingToMergeError, UserError
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.tools.bench.variants import VARIANTS
from ppdiffusers_tome.tools.evaluate.block_clock import merging_levels, timed_blocks
from ppdiffusers_tome.tools.evaluate.configurations import (
    Configuration,
    distinct,
    from_files,
    from_suite,
    ours,
    port,
    unmerged,
)
from ppdiffusers_tome.tools.evaluate.features import clip_score, frechet_distance, picture_files
from ppdiffusers_tome.tools.evaluate.frontier import on_frontier
from ppdiffusers_tome.tools.evaluate.image_store import PictureStore
from ppdiffusers_tome.tools.evaluate.ledger import EvaluationLedger
from ppdiffusers_tome.tools.evaluate.measurement import measure
from ppdiffusers_tome.tools.evaluate.plot import plot
from ppdiffusers_tome.tools.evaluate.samples import Case, Sample
from ppdiffusers_tome.tools.evaluate.summary import Row, rows, table
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.generation.sampling import generate_image
from ppdiffusers_tome.tools.measure.json_lines import part_of
from ppdiffusers_tome.tools.measure.memory import Meter
from ppdiffusers_tome.tools.measure.similarity import Similarity

HALF = ours(ToMeConfig(ratio=0.5))


@pytest.fixture(scope="module")
def bundled() -> Any:
    pipe = load_pipeline(find_model("bundled"))
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def drawing(bundled: Any) -> Callable[[], GeneratedImage]:
    def drawn() -> GeneratedImage:
        meter = Meter()
        picture = generate_image(
            bundled, "a photo of a cat", height=64, width=64, seed=0, steps=1, guidance_scale=1.5
        )
        return GeneratedImage(picture, meter.seconds(), meter.peak_bytes(), None)

    return drawn


# The frontier


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], []),
        ([(1, math.inf)], [True]),
        ([(1, math.inf), (2, 30), (3, 20), (1.5, 25), (3, 10)], [True, True, True, False, False]),
        ([(1, math.inf), (0.9, 60), (0.9, math.inf)], [True, False, False]),
        ([(2, 30), (2, 30), (1, 20)], [True, True, False]),
        ([(2, 30), (2, 31), (1, 31)], [False, True, False]),
    ],
)
def test_frontier_holds_what_nothing_dominates(points: list[tuple[float, float]], expected: list[bool]) -> None:
    assert on_frontier(points) == expected


# Configurations


def test_each_configuration_applies_what_it_names() -> None:
    pipe = tiny.pipeline()
    before = tiny.snapshot(pipe.unet)
    tiles = ours(ToMeConfig(ratio=0.5, tile=16))
    tiles.apply(pipe)
    assert applied_tome(pipe).config == tiles.tome
    port(0.7, 2).apply(pipe)
    assert applied_tome(pipe) is None
    assert (pipe.unet._tome_info["args"]["ratio"], pipe.unet._tome_info["args"]["max_downsample"]) == (0.7, 2)
    unmerged().apply(pipe)
    assert tiny.snapshot(pipe.unet) == before


def test_names_and_families_tell_settings_apart() -> None:
    assert (HALF.name, HALF.family) == ("ours 0.5", "ours")
    assert (port(0.25).name, port(0.25).family) == ("port 0.25", "port")
    assert port(0.5, 2).family == "port, max_downsample 2"
    fast = ours(ToMeConfig(ratio=0.7, tile=16, reuse_blocks=True, use_rand=False))
    assert fast.name == "ours 0.7, no use_rand, tile 16, reuse_blocks"
    assert fast.family == "ours, no use_rand, tile 16, reuse_blocks"
    assert ours(ToMeConfig(ratio=0.2, tile=16)).family == ours(ToMeConfig(ratio=0.6, tile=16, seed=3)).family
    assert ours(ToMeConfig(), "mine", "others").to_dict() | {"tome": 0} == {
        "name": "mine", "contender": "ours", "family": "others", "tome": 0,
    }  # fmt: skip


def test_files_of_settings_are_called_by_their_stems(tmp_path: Path) -> None:
    ToMeConfig(ratio=0.3, tile=8).save(tmp_path / "careful.json")
    assert from_files(["quality"])[0].tome == ToMeConfig.preset("quality")
    (found,) = from_files([tmp_path / "careful.json"])
    assert (found.name, found.tome, found.family) == ("careful", ToMeConfig(ratio=0.3, tile=8), "ours, tile 8")


def test_suite_holds_a_configuration_a_line(tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    path.write_text(
        '{"name": "port half", "contender": "port", "ratio": 0.5, "max_downsample": 2}\n\n'
        '{"name": "tiles", "family": "in tiles", "ratio": 0.25, "tile": 16}\n'
    )
    assert from_suite(path) == [
        port(0.5, 2, "port half"),
        Configuration("tiles", "ours", ToMeConfig(ratio=0.25, tile=16), "in tiles"),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "holds no configuration"),
        ("{", "line 1: "),
        ("[1]", "line 1: got list, not an object"),
        ('{"ratio": 0.5}', "line 1: name=None must be what to call it"),
        ('{"name": "a", "family": 3}', "family=3 must be"),
        ('{"name": "a", "contender": "theirs"}', "contender='theirs' must be 'ours' or 'port'"),
        ('{"name": "a", "ratoi": 0.5}', "unknown setting 'ratoi'"),
        ('{"name": "a", "ratio": 0.9}', "below 0.75 for a 2x2 stride"),
        ('{"name": "a", "ratio": "half"}', "ratio='half' must be a number"),
        ('{"name": "a", "contender": "port", "ratio": 0.5, "tile": 16}', "the port has no tile"),
    ],
)
def test_suite_that_is_none_is_refused(line: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match=r"--suite .*suite\.jsonl") as raised:
        from_suite(path)
    assert sentence in str(raised.value)


def test_bad_file_of_settings_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"ratoi": 0.5}')
    with pytest.raises(UserError, match=r"--configs .*bad\.json: unknown setting 'ratoi'"):
        from_files([tmp_path / "bad.json"])


def test_configurations_are_distinct() -> None:
    assert [each.name for each in distinct([HALF, port(0.5), HALF])] == ["unmerged", "ours 0.5", "port 0.5"]
    with pytest.raises(UserError, match=r"two different configurations are called 'ours 0\.5'"):
        distinct([HALF, ours(ToMeConfig(ratio=0.25), "ours 0.5")])
    with pytest.raises(UserError, match="called 'unmerged', as 'unmerged' is the pipeline"):
        distinct([ours(ToMeConfig(), "unmerged")])
    with pytest.raises(UserError, match="nothing is to be compared"):
        distinct([])


# Seconds inside the blocks


@pytest.mark.parametrize("contender", ["none", "port", "ours"])
def test_clock_runs_from_the_first_hook_of_a_block_to_its_last(contender: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hooks of a block count, also such as were there first; no other layer's do."""
    pipe = tiny.pipeline()
    VARIANTS[contender].apply(pipe, 0.5)
    (site, *_), unet, now = find_blocks(pipe.unet), pipe.unet, [0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])  # time passes in the hooks below alone

    def pause(*_: Any) -> None:
        now[0] += 1

    def seconds() -> dict[int, float]:
        with timed_blocks(pipe) as found:
            tiny.run_unet(unet)
        return found

    def hooks() -> list[tuple[list, list]]:
        layers = unet.sublayers(include_self=True)
        return [(list(layer._forward_pre_hooks), list(layer._forward_post_hooks)) for layer in layers]

    for layer in (unet.time_proj, unet.conv_out, site.parent):
        layer.register_forward_pre_hook(pause)
        layer.register_forward_post_hook(pause)
    assert seconds() == {1: 0, 2: 0}
    assert now[0] == 6
    site.block.attn1.register_forward_pre_hook(pause)
    assert seconds() == {1: 1, 2: 0}
    site.block.register_forward_pre_hook(pause)
    site.block.register_forward_post_hook(pause)
    before = hooks()
    assert seconds() == {1: 3, 2: 0}
    assert hooks() == before


def test_clock_is_taken_off_after_an_error() -> None:
    pipe = tiny.pipeline()
    before = tiny.snapshot(pipe.unet)
    with pytest.raises(ZeroDivisionError), timed_blocks(pipe):
        raise ZeroDivisionError
    assert tiny.snapshot(pipe.unet) == before


def test_levels_are_those_where_anyone_merges() -> None:
    pipe = tiny.pipeline()
    assert merging_levels(pipe, [ToMeConfig()]) == (1,)
    assert merging_levels(pipe, [ToMeConfig(), ToMeConfig(max_downsample=2)]) == (1, 2)
    assert merging_levels(tiny.pipeline(unet=tiny.sdxl_unet()), [ToMeConfig()]) == (2,)


# One measurement


def test_measurement_is_of_the_configuration_and_leaves_the_pipeline_unmerged(bundled: Any, drawing: Any) -> None:
    reference = measure(bundled, unmerged(), drawing)
    assert reference.similarity is None
    pixels = np.asarray(reference.kept_image)
    merged = measure(bundled, HALF, drawing, pixels)
    assert applied_tome(bundled) is None
    apply_tome(bundled, 0.5)
    try:
        np.testing.assert_array_equal(np.asarray(drawing().kept_image), np.asarray(merged.kept_image))
    finally:
        bundled.remove_tome()
    assert merged.similarity.psnr < 60
    assert set(merged.block_seconds) == {1, 2, 4, 8}
    assert 0 < sum(merged.block_seconds.values()) < merged.seconds
    nothing = measure(bundled, ours(ToMeConfig(ratio=0)), drawing, pixels)
    assert nothing.similarity == Similarity(math.inf, 1, 0)


def test_blocks_timed_apart_are_those_of_the_same_picture(bundled: Any, drawing: Any) -> None:
    calls: list[GeneratedImage] = []

    def counted() -> GeneratedImage:
        calls.append(drawing())
        return calls[-1]

    apart = measure(bundled, HALF, counted, blocks_apart=True)
    assert len(calls) == 2
    assert apart.seconds == calls[0].seconds
    assert calls[0].kept_image.tobytes() == calls[1].kept_image.tobytes() == apart.kept_image.tobytes()
    assert apart.block_seconds[1] > 0


def test_pipeline_is_unmerged_after_an_error(bundled: Any) -> None:
    def broken() -> GeneratedImage:
        assert applied_tome(bundled) is not None
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure(bundled, HALF, broken)
    assert applied_tome(bundled) is None
    with pytest.raises(NothingToMergeError):
        measure(tiny.pipeline(unet=tiny.sdxl_unet()), ours(ToMeConfig(max_downsample=1)), broken)


# The ledger and the table

CASES = [Case("a", 0), Case("b", 0)]
CONFIGURATIONS = [unmerged(), port(0.5), HALF]


def sample(name: str, prompt: str, run: int, seconds: float, blocks: float, psnr: float | None) -> Sample:
    similarity = None if psnr is None else Similarity(psnr, min(1.0, psnr / 100), 0.25)
    levels = {1: blocks, 2: 100.0}
    drawn = GeneratedImage(None, seconds, 7 * 2**20, 5 * 2**20, similarity, levels, follows_prompt=prompt == "a")
    return Sample(name, Case(prompt, 0), run, drawn)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[EvaluationLedger]:
    """Two prompts; of the second, ours was drawn in a later run, when the machine was half as fast."""
    ledger = EvaluationLedger(tmp_path / "evaluate.jsonl", {"height": 64})
    for each in (
        sample("unmerged", "a", 1, 10.0, 8.0, None), sample("port 0.5", "a", 1, 20.0, 16.0, 30.0),
        sample("ours 0.5", "a", 1, 5.0, 2.0, 20.0), sample("unmerged", "b", 1, 12.0, 8.0, None),
        sample("port 0.5", "b", 1, 24.0, 16.0, math.inf), sample("unmerged", "b", 2, 24.0, 16.0, None),
        sample("ours 0.5", "b", 2, 6.0, 8.0, 40.0),
    ):  # fmt: skip
        ledger.add_sample(each)
    yield ledger
    ledger.close()


def summed_up(
    ledger: EvaluationLedger, configurations: list[Configuration] = CONFIGURATIONS,
    scores: dict[str, dict[str, float]] | None = None,
) -> list[Row]:  # fmt: skip
    samples = {each.name: [ledger.samples(each.name)[case] for case in CASES] for each in configurations}
    return rows(configurations, samples, ledger.unmerged, (1,), scores or {})


def test_speed_ups_are_of_one_case_and_run(ledger: EvaluationLedger) -> None:
    plain, of_port, half = summed_up(ledger)
    assert (plain.speed_up.median, plain.block_speed_up.high, plain.psnr) == (1, 1, None)
    assert (of_port.speed_up.median, of_port.block_speed_up.median) == (0.5, 0.5)
    assert (half.speed_up.low, half.speed_up.high) == (2, 4)
    assert (half.block_speed_up.low, half.block_speed_up.high) == (2, 4)
    assert (half.seconds.median, half.block_seconds.median, half.psnr.median) == (5.5, 5, 30)
    assert [row.on_frontier for row in (plain, of_port, half)] == [True, False, True]


def test_table_shows_what_was_measured(ledger: EvaluationLedger) -> None:
    found = summed_up(ledger, scores={"ours 0.5": {"CLIP score": 25.0}})
    written = table(found).markdown()
    seconds = "12.00 s | 1.00x | 17.00 s | 1.00x | 5 MiB | 7 MiB"
    plain = f"| unmerged | blocks and whole | {seconds} | - | - | - | 50.0% | - |"
    assert plain in written
    assert "| 30.0 (20.0) | 0.300 | 0.250 | 50.0% | 25.00 |" in written
    assert "| identical (30.0) | 0.650 | 0.250 | 50.0% | - |" in written
    assert written.count("| blocks and whole |") == 2
    of_port = json.loads(json.dumps(found[1].to_dict(), allow_nan=False))
    assert of_port["psnr_db"] == {"median": None, "low": 30.0, "high": None, "interval": None}
    assert of_port["samples"][1]["psnr_db"] is None


def test_plot_has_a_colour_a_family_and_no_place_for_the_identical(ledger: EvaluationLedger) -> None:
    def colours(found: list[Row]) -> set[tuple[int, int, int]]:
        return {colour for _, colour in plot("Title", "under", found).getcolors(10**6)}

    plain, of_port, half = summed_up(ledger)
    blue, orange = (0x3A, 0x78, 0xC9), (0xC9, 0x8A, 0x3A)
    assert math.isinf(of_port.similarity)
    assert colours([plain, of_port, half]) & {blue, orange} == {blue}
    assert not colours([plain]) & {blue, orange}
    other = summed_up(ledger, [unmerged(), ours(ToMeConfig(), "ours 0.5", "others"), HALF])
    assert colours(other) >= {blue, orange}


def test_ledger_reads_back_what_it_wrote(ledger: EvaluationLedger) -> None:
    ledger.close()
    with EvaluationLedger(ledger.path, {"height": 64}) as again:
        assert again.samples("port 0.5") == ledger.samples("port 0.5")
        assert again.samples("port 0.5")[CASES[1]].drawn.similarity.psnr == math.inf
        assert again.next_run == 3
        assert again.samples("unmerged")[CASES[1]].run == 2
    with pytest.raises(UserError, match="was measured with height=64 and this run has 128"):
        EvaluationLedger(ledger.path, {"height": 128})
    EvaluationLedger(ledger.path, {"height": 64}).close()  # who was refused holds no lock


def test_name_stands_for_one_configuration(ledger: EvaluationLedger) -> None:
    ledger.note_configurations([unmerged(), HALF])
    ledger.close()
    lines = ledger.path.read_text()
    with EvaluationLedger(ledger.path, {"height": 64}) as again:
        again.note_configurations([HALF])
        with pytest.raises(UserError, match=r"another configuration called 'ours 0.5' \(tile=None then and 16 now\)"):
            again.note_configurations([port(0.5), ours(ToMeConfig(tile=16), "ours 0.5", "ours")])
    assert ledger.path.read_text() == lines


@pytest.mark.parametrize("line", [1, 3, 7])
def test_torn_line_of_a_ledger_is_told_and_the_rest_stays(line: int, ledger: EvaluationLedger) -> None:
    """Also in the middle of the file, where ranks that wrote to one file have torn it. (Line 0 is the plan.)"""
    ledger.close()
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line][:40]  # and the next one glued behind it
    ledger.path.write_bytes(b"".join(lines))
    with pytest.warns(UserWarning, match=rf"evaluate\.jsonl, line {line + 1} is incomplete"):
        again = EvaluationLedger(ledger.path, {"height": 64})
    with again:
        left = [each for number, each in enumerate(lines[1:], start=1) if number not in (line, line + 1)]
        assert again.lines[1:] == list(map(json.loads, left))
        again.add_sample(sample("unmerged", "c", 3, 1.0, 1.0, None))
        again.add_sample(sample("ours 0.5", "c", 3, 1.0, 1.0, 20.0))
    with pytest.warns(UserWarning, match="is incomplete"), EvaluationLedger(ledger.path, {"height": 64}) as again:
        assert Case("c", 0) in again.samples("ours 0.5")


def test_picture_that_lost_its_unmerged_one_is_lost_too(ledger: EvaluationLedger) -> None:
    """Its seconds are compared with those of the same run, so it is drawn again, beside the unmerged pipeline."""
    ledger.close()
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    lines[6] = lines[6][:40] + b"\n"  # of prompt b in run 2
    ledger.path.write_bytes(b"".join(lines))
    with pytest.warns(UserWarning, match="line 7 is incomplete"):
        again = EvaluationLedger(ledger.path, {"height": 64})
    with again:
        assert set(again.samples("ours 0.5")) == {CASES[0]}
        assert set(again.samples("port 0.5")) == set(again.samples("unmerged")) == set(CASES)


@pytest.mark.parametrize("picture", ["3", "{}", "null", '{"block_seconds": {"x": 1}}'])
def test_picture_of_another_version_is_refused(picture: str, ledger: EvaluationLedger) -> None:
    ledger.close()
    with ledger.path.open("a") as file:
        file.write(f'{{"picture": {picture}}}\n')
    for rank in (0, 1):
        with pytest.raises(UserError, match=r"holds a picture that this version did not write; .*or --overwrite"):
            EvaluationLedger(ledger.path, {"height": 64}, rank=rank)
    EvaluationLedger(ledger.path, {"height": 64}, overwrite=True).close()


@pytest.mark.parametrize("begun", [b"", b'{"pla', b'{"plan": {"heig', b"\0" * 20])
def test_ledger_whose_first_line_was_cut_off_begins_again(begun: bytes, tmp_path: Path) -> None:
    path = tmp_path / "evaluate.jsonl"
    path.write_bytes(begun)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            with EvaluationLedger(path, {"height": 64}) as ledger:
                assert ledger.lines == [{"plan": {"height": 64}}]


@pytest.mark.parametrize("content", ["mine\n", "mine", '{"mine": 1}\n', '{"plan": "to go home"}\n', "{\n}\n"])
def test_file_of_something_else_is_no_ledger(content: str, tmp_path: Path) -> None:
    path = tmp_path / "evaluate.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=r"evaluate\.jsonl cannot be read as findings of this program.*or --overwrite"):
        EvaluationLedger(path, {"height": 64})
    assert path.read_text() == content
    with EvaluationLedger(path, {"height": 64}, overwrite=True) as ledger:
        assert ledger.lines == [{"plan": {"height": 64}}]


@pytest.mark.parametrize("rank", [0, 1])
def test_second_run_of_one_evaluation_is_refused(rank: int, ledger: EvaluationLedger) -> None:
    """Whichever rank is still there: a launch on several machines may have lost its rank 0 alone."""
    other = EvaluationLedger(ledger.path, {"height": 64}, rank=1)
    (other, ledger)[rank].close()
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"another run writes to .*; wait until it has ended"):
            EvaluationLedger(ledger.path, {"height": 64}, overwrite=overwrite)
    assert len(ledger.path.read_bytes().splitlines()) == 8
    other.close()


def test_ranks_write_parts_which_the_first_takes_in(ledger: EvaluationLedger) -> None:
    new = [sample("unmerged", "c", 3, 1.0, 1.0, None), sample("unmerged", "d", 3, 1.0, 1.0, None)]
    before = ledger.path.read_bytes()
    with EvaluationLedger(ledger.path, {"height": 64}, rank=1) as second:
        assert second.samples("ours 0.5") == ledger.samples("ours 0.5")
        second.add_sample(new[0])
        ledger.add_sample(new[1])
        kept = part_of(ledger.path, 1).read_bytes()
    ledger.gather()
    assert {each.case for each in new} <= set(ledger.samples("unmerged"))
    assert not part_of(ledger.path, 1).exists()
    whole = ledger.path.read_bytes()
    assert whole.startswith(before)
    assert len(whole.splitlines()) == len(before.splitlines()) + 2
    # Killed just before the part was removed: the next run finds it and takes nothing twice. One line of it is torn.
    ledger.close()
    part_of(ledger.path, 1).write_bytes(kept + b'{"picture": {"conf')
    with pytest.warns(UserWarning, match=r"part-0001\.jsonl, line 3 is incomplete"):
        EvaluationLedger(ledger.path, {"height": 64}).close()
    assert ledger.path.read_bytes() == whole
    assert [path.name for path in ledger.path.parent.iterdir()] == ["evaluate.jsonl"]


def test_parts_of_another_evaluation_are_refused_and_overwritten(ledger: EvaluationLedger) -> None:
    ledger.close()
    part = part_of(ledger.path, 2)
    part.write_text('{"plan": {"height": 128}}\n{"on": {}}\n')
    with pytest.raises(UserError, match=r"part-0002\.jsonl was measured with height=128 and this run has 64"):
        EvaluationLedger(ledger.path, {"height": 64})
    EvaluationLedger(ledger.path, {"height": 64}, overwrite=True).close()
    assert [path.name for path in part.parent.iterdir()] == ["evaluate.jsonl"]


def test_pictures_are_not_written_through_a_link(tmp_path: Path) -> None:
    """An output folder that somebody else filled may hold one."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "references").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match=r"references leads out of --output .*out by a link"):
        PictureStore(tmp_path / "out", keeps_all=False).prepare([unmerged(), HALF], CASES, overwrite=True)
    (tmp_path / "also").symlink_to(tmp_path / "out")  # the output itself is the user's own word
    (tmp_path / "out" / "references").unlink()
    PictureStore(tmp_path / "also", keeps_all=True).prepare([unmerged(), HALF], CASES, overwrite=True)


def test_files_of_prompts_that_begin_alike_differ() -> None:
    long = "a very long prompt " * 9
    names = {Case(prompt, seed).file_name for prompt in (long + "one", long + "two") for seed in (0, 1)}
    assert len(names) == 4


# Distances of features


def test_frechet_distance_is_that_of_the_matrix_root() -> None:
    from scipy.linalg import sqrtm

    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(50, 6)), rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6)) + 1
    covariances = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    root = sqrtm(covariances[0] @ covariances[1]).real
    expected = ((one.mean(0) - other.mean(0)) ** 2).sum() + np.trace(covariances[0] + covariances[1] - 2 * root)
    assert frechet_distance(one, other) == pytest.approx(expected)
    assert frechet_distance(other, one) == pytest.approx(expected)


def test_frechet_distance_with_fewer_pictures_than_features() -> None:
    features = np.random.default_rng(0).normal(size=(5, 64))
    assert frechet_distance(features, features) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(features, features + 0.5) == pytest.approx(64 * 0.25)


def test_clip_score_is_a_hundred_cosines() -> None:
    images = np.array([[3.0, 0], [0, 2.0], [-1.0, 0]])
    assert clip_score(images, np.array([[1.0, 0], [1.0, 1.0], [1.0, 0]])) == pytest.approx(100 * (1 + 2**-0.5) / 3)


def test_pictures_are_found_in_folders_of_folders(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for name in ("b.JPG", "a.png", "more/c.jpeg", "words.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in picture_files(tmp_path)] == ["a.png", "b.JPG", "c.jpeg"]


def test_names_that_look_alike_keep_pictures_of_their_own(tmp_path: Path) -> None:
    store, case = PictureStore(tmp_path, keeps_all=True), Case("a cat", 0)
    configurations = [replace(HALF, name=name) for name in ("tome 0.5", "tome 0,5")]
    store.prepare(configurations, [case], overwrite=False)
    for name, grey in (("tome 0.5", 10), ("tome 0,5", 200)):
        store.write(name, case, Image.new("RGB", (8, 8), (grey,) * 3))
    assert [int(store.read(name, case)[0, 0, 0]) for name in ("tome 0.5", "tome 0,5")] == [10, 200]
