"""Intervals of medians, and which differences are significant: differences picture by picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.tools.evaluate.configurations import Configuration, ours, port, unmerged
from ppdiffusers_tome.tools.evaluate.differences import PSNR, SPEED_UP, describe_differences, differences, table
from ppdiffusers_tome.tools.evaluate.intervals import FEWEST, Median, interval
from ppdiffusers_tome.tools.evaluate.samples import Case, Sample
from ppdiffusers_tome.tools.evaluate.summary import rows, write_table
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.measure.similarity import Similarity

RNG = np.random.default_rng(1)
PICTURES = RNG.normal(30, 5, 24)  # what pictures lose differs far more than what settings do


def measured(*of: tuple[Configuration, Sequence[float]]) -> list[tuple[Configuration, dict[str, list[float]]]]:
    return [(configuration, {PSNR: list(values)}) for configuration, values in of]


def sentences(*of: tuple[Configuration, Sequence[float]]) -> list[str]:
    given = measured(*of)
    return list(describe_differences(given, differences(given)))


def at(*ratios: float) -> list[Configuration]:
    return [ours(ToMeConfig(ratio)) for ratio in ratios]


def test_interval_is_that_of_scipy() -> None:
    from scipy.stats import bootstrap

    given = dict(confidence_level=0.95, method="percentile", n_resamples=10_000)
    for values in (PICTURES, PICTURES[:7], RNG.exponential(1, 60)):
        theirs = bootstrap((values,), np.median, random_state=np.random.default_rng(3), **given).confidence_interval
        assert interval(values) == pytest.approx(tuple(theirs), rel=0.02)


def test_interval_holds_the_median_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(2)
    held = [low <= 0 <= high for low, high in (interval(rng.normal(size=24)) for _ in range(300))]
    assert 0.91 <= np.mean(held) <= 0.98


def test_interval_is_the_same_every_time_and_moves_no_generator() -> None:
    before = np.random.get_state()[1].tolist()
    assert interval(PICTURES) == interval(PICTURES)
    assert np.random.get_state()[1].tolist() == before


def test_many_values_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from ppdiffusers_tome.tools.evaluate import intervals

    whole = interval(PICTURES)
    monkeypatch.setattr(intervals, "_AT_ONCE", 1000)
    assert interval(PICTURES) == whole


def test_few_values_have_no_interval() -> None:
    assert interval(PICTURES[: FEWEST - 1]) is None
    assert interval(PICTURES[:FEWEST]) is not None
    assert Median.of([1.0, 2.0]).words("{:.1f}".format) == "1.5"


def test_identical_pictures_are_infinitely_similar() -> None:
    mostly = Median.of([math.inf] * 7 + [40.0])
    assert (mostly.median, mostly.interval) == (math.inf, (math.inf, math.inf))
    assert mostly.words(str) == "inf"
    assert json.loads(json.dumps(mostly.to_dict(), allow_nan=False)) == {
        "median": None, "low": 40.0, "high": None, "interval": [None, None],
    }  # fmt: skip
    half = Median.of([math.inf, -math.inf] * 4)
    assert (half.median, half.interval) == (0.0, (-math.inf, math.inf))


def test_settings_differ_significantly_though_their_intervals_overlap() -> None:
    """By half a decibel on each picture, where pictures differ by tens."""
    mild, strong = at(0.25, 0.5)
    (found,) = differences(measured((unmerged(), []), (mild, PICTURES), (strong, PICTURES - 0.5 - RNG.random(24) / 9)))
    one, other = interval(PICTURES), interval(PICTURES - 0.5)
    assert one[0] < other[1]
    assert found.is_significant
    assert (found.one, found.other) == ("ours 0.25", "ours 0.5")
    assert found.of.median == pytest.approx(0.55, abs=0.06)
    assert str(found).startswith("+0.")
    assert str(found.reversed).startswith("-0.")


def test_settings_that_take_turns_do_not_differ_significantly() -> None:
    mild, strong = at(0.25, 0.5)
    values = PICTURES + RNG.normal(0, 1, 24)
    (found,) = differences(measured((mild, PICTURES), (strong, values)))
    assert not found.is_significant
    assert str(found).startswith("~")
    assert f"{PSNR}: not significant: ours 0.25 and ours 0.5" in sentences((mild, PICTURES), (strong, values))


def test_settings_that_draw_the_same_do_not_differ() -> None:
    mild, strong = at(0.25, 0.5)
    same = [math.inf, *PICTURES]
    (found,) = differences(measured((mild, same), (strong, same)))
    assert (found.of.median, found.is_significant) == (0.0, False)
    assert str(found) == "~+0.0"


def test_differences_of_few_pictures_are_not_significant() -> None:
    mild, strong = at(0.25, 0.5)
    given = (mild, PICTURES[:5]), (strong, PICTURES[:5] - 20)
    assert not differences(measured(*given))[0].is_significant
    assert sentences(*given) == [
        "no difference is significant with 5 pictures: a median has an interval from 6 pictures on; add prompts or "
        "seeds"
    ]


@pytest.mark.parametrize("order", [(0.1, 0.25, 0.5, 0.74), (0.74, 0.1, 0.5, 0.25)])
def test_fall_with_the_ratio_is_said(order: tuple[float, ...]) -> None:
    lost = {0.1: 0, 0.25: 3, 0.5: 5, 0.74: 9}
    noise = {ratio: RNG.normal(0, 0.1, 24) for ratio in order}
    given = zip(order, at(*order), strict=True)
    said = sentences(*((each, PICTURES - lost[ratio] + noise[ratio]) for ratio, each in given))
    assert f"{PSNR}: all differences are significant" in said
    assert said[-1].startswith("ours: PSNR falls with every step of the ratio; it loses ")
    assert said[-1].endswith(" dB from 0.1 to 0.74")
    assert float(said[-1].split("loses ")[1].split()[0]) == pytest.approx(9, abs=0.1)


def test_what_does_not_fall_is_said() -> None:
    values = [PICTURES, PICTURES - 3, PICTURES - 3 + RNG.normal(0, 1, 24), PICTURES - 1]
    others = [(port(0.25), PICTURES - 2), (ours(ToMeConfig(0.5, tile=16)), PICTURES - 4)]
    said = sentences(*zip(at(0.1, 0.25, 0.5, 0.7), values, strict=True), *others)
    assert said[-1] == (  # and nothing of families of one ratio
        "ours: PSNR does not fall with every step of the ratio (from 0.25 to 0.5 the fall is not significant; from 0.5 "
        "to 0.7 it rises); it loses 1.0 dB from 0.1 to 0.7"
    )


def test_nothing_is_lost_at_ratio_0() -> None:
    unmerged = np.full(24, math.inf)
    said = sentences(*zip(at(0.0, 0.25, 0.5), (unmerged, PICTURES, PICTURES - 3), strict=True))
    assert said[-1].endswith("dB from 0.25 to 0.5")


def test_a_family_that_differs_in_more_than_the_ratio_does_not_fall_with_it() -> None:
    mild, strong = ours(ToMeConfig(0.25)), ours(ToMeConfig(0.5, method="todo"))
    strong = replace(strong, family=mild.family)
    said = sentences((mild, PICTURES), (strong, PICTURES - 3))
    assert not any("falls with every step" in each for each in said)


def test_long_lists_of_pairs_are_cut() -> None:
    many = [(each, PICTURES) for each in at(*np.linspace(0.1, 0.7, 7).round(2).tolist())]
    (listed,) = [each for each in sentences(*many) if "not significant:" in each]
    assert listed.endswith("; and 11 more pairs")


def test_summary_has_intervals_and_differences(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    def samples(configuration: Configuration, seconds: float, lost: float | None) -> list[Sample]:
        return [
            Sample(configuration.name, Case("p", seed), 1, GeneratedImage(
                None, seconds + seed / 100, 2**20, 2**20,
                None if lost is None else Similarity(psnr - lost, 0.9 - lost / 100, lost / 100 + seed / 1000),
            ))
            for seed, psnr in enumerate(PICTURES)
        ]  # fmt: skip

    every = [unmerged(), *at(0.25, 0.5)]
    drawn = {
        each.name: samples(each, *of)
        for each, of in zip(every, [(4.0, None), (2.0, 1.0), (1.0, 3.0)], strict=True)
    }  # fmt: skip
    found = rows(every, drawn, drawn["unmerged"])
    half = found[2]
    assert half.psnr.interval == interval(PICTURES - 3)
    assert half.speed_up.interval[0] < half.speed_up.median < half.speed_up.interval[1]
    paths = [tmp_path / name for name in ("a.png", "a.md", "a.json")]
    write_table(paths, "Title", ["a note"], found, {"run": 1}, overwrite=False)
    written = paths[1].read_text()
    low, high = half.psnr.interval
    assert f"| {half.psnr.median:.1f} [{low:.1f}, {high:.1f}] ({PICTURES.min() - 3:.1f}) |" in written
    assert f"| {half.flip.median:.3f} [" in written
    assert "| ours 0.25 | ours 0.5 | +2.0 | +0.020 | -0.020 | -1.7" in written
    assert "- in brackets: 95% percentile bootstrap over the pictures (10,000 resamples, seed 0)" in written
    assert "- speed-up: all differences are significant" in written
    content = json.loads(paths[2].read_text())
    assert content["intervals"].startswith("95% percentile bootstrap")
    assert content["configurations"][2]["psnr_db"]["interval"] == pytest.approx([low, high])
    of_psnr, *_, of_speed_up = content["differences"]
    assert (of_psnr["measure"], of_psnr["one"], of_psnr["other"], of_psnr["significant"]) == (
        PSNR, "ours 0.25", "ours 0.5", True,
    )  # fmt: skip
    assert of_speed_up["measure"] == SPEED_UP
    assert of_speed_up["interval"][0] < of_speed_up["median"] < of_speed_up["interval"][1] < 0
    assert "not significant" in capsys.readouterr().out


def test_table_of_differences_has_a_row_a_pair() -> None:
    found = differences(measured(*((each, PICTURES - 9 * each.tome.ratio) for each in at(0.1, 0.25, 0.5))))
    assert [row[:2] for row in table(found).rows] == [
        ("ours 0.1", "ours 0.25"), ("ours 0.1", "ours 0.5"), ("ours 0.25", "ours 0.5"),
    ]  # fmt: skip
    assert table(found).headings == ("differences", "less", PSNR)
