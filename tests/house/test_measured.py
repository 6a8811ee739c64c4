"""The scripts in docs/measured read evaluations rightly, and the evaluations kept there are of today's suite."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.evaluate.configurations import from_suite

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs" / "measured"
SUITES = ROOT / "ppdiffusers_tome" / "tools" / "evaluate"
# What is kept, with the suites that were evaluated.
OF_SUITES = {
    "bundled": ("fidelity", "fidelity-levels"),
    "bundled-dit": ("fidelity", "fidelity-tiles", "fidelity-steps"),
    "bundled-tiles": ("fidelity-tiles",),
    "bundled-steps": ("fidelity-steps",),
}
# Of other suites, beside what is compared with them.
ANCHORS = {
    "bundled-tiles": (
        "tome 0.5", "tome 0.74", "tome, proportional 0.5", "keys 0.75", "todo, random 3x3", "todo, random 4x4",
        "tome 0.5, 2 levels",
    ),
    "bundled-steps": (
        "tome 0.5", "tile 8, proportional 0.5", "todo, random 0.75", "todo, random 3x3", "todo, random 4x4",
        "todo, random 3x3, 80% of the steps", "todo, random 4x4, 80% of the steps", "todo, random 4x4, 2 levels",
    ),
}  # fmt: skip
KEPT = {name: MEASURED / "fidelity" / f"{name}.json" for name in OF_SUITES}
EVALUATIONS = [KEPT["bundled"], KEPT["bundled-dit"]]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, MEASURED / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for what their annotations name
    spec.loader.exec_module(module)
    return module


frontier, choose_presets, choices = load("frontier"), load("choose_presets"), load("choices")


def point(name: str, speed: float, psnr: float, family: str | None = None, blocks: float | None = None) -> Any:
    return frontier.Point(name, family or name, speed, blocks or speed, psnr, line=family or name)


def row(name: str, psnr: list[float | None], speed: float, settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration as ``evaluate.json`` has it, as far as it is read."""
    return {
        "configuration": {"name": name, "tome": ToMeConfig(**settings).to_dict()},
        "block_speed_up": {"median": speed},
        "samples": [{"prompt": "cat", "seed": seed, "psnr_db": value} for seed, value in enumerate(psnr)],
    }


def evaluation(rows: list[dict[str, Any]], model: str = "bundled") -> dict[str, Any]:
    return {"run": {"model": model}, "configurations": rows}


class TestFrontier:
    def test_between_ratios_it_is_on_their_line_and_what_is_faster_counts(self) -> None:
        def at(points: list[Any], speed: float) -> float | None:
            return frontier.psnr_at(points, speed, frontier.of_picture)

        tome = [point("a", 1.2, 40, "tome"), point("b", 1.4, 36, "tome"), point("c", 1.6, 32, "tome")]
        assert at(tome, 1.3) == pytest.approx(38)
        assert at(tome, 1.5) == pytest.approx(34)
        assert (at(tome, 1.0), at(tome, 1.6), at(tome, 1.7)) == (40, 32, None)
        beaten = [point("a", 1.2, 40, "tome"), point("b", 1.4, 30, "tome"), point("c", 1.6, 34, "tome")]
        assert at(beaten, 1.3) == pytest.approx(35)  # not on the line from a to c, as b was measured
        assert at(beaten, 1.4) == 34
        assert at([point("a", 1.2, 40), point("b", 1.6, 36)], 1.4) == 36  # nothing lies between two methods
        found = frontier.frontier([*beaten, point("equal", 1.6, 34)], frontier.of_picture)
        assert [each.name for each in found] == ["a", "c", "equal"]

    def test_settings_of_one_line_differ_in_ratio_and_cells_alone(self) -> None:
        def line(ratio: Any, **settings: Any) -> str:
            return frontier._line({"tome": ToMeConfig(ratio, **settings).to_dict()})

        assert line(0.5) == line(0.7) == line(0.8, sx=4, sy=4)
        others = [line({1: 0.5, 2: 0.5}), line(0.5, method="todo"), line(0.5, tile=8), line(0.5, end=0.9)]
        assert len({line(0.5), *others}) == 5
        assert line({1: 0.5, 2: 0.5}) == line({1: 0.7, 2: 0.7})

    def test_published_methods_are_none_of_ours(self) -> None:
        points = [point("tome", 2, 20), point("todo", 2, 50), point("keys", 2, 30)]
        (line,) = [line for line in frontier.goals(points) if line.startswith("| 1.5x")]
        assert line == "| 1.5x | keys | 30.0 | +10.0 | -20.0 |"

    def test_what_is_not_reached_is_said(self) -> None:
        lines = frontier.goals([point("tome", 1.3, 20), point("keys", 1.6, 30)])
        assert lines[0] == "the port at 0.5 was not evaluated"
        assert "| 1.5x | keys | 30.0 | not so fast | not so fast |" in lines
        assert lines[-1] == "| 1.7x and more | none | - | - | - |"

    def test_at_the_ports_fidelity_and_speed(self) -> None:
        port = point("port 0.5", 1.5, 30, "port", blocks=2.0)
        lines = frontier.goals([port, point("keys", 2, 31, blocks=4.0), point("pool", 1.5, 34, blocks=2.0)])
        assert "keys (31.0 dB, 4.00x) saves 75% of the time, the port 50%; 1.5 times as much, of 2.0" in lines[1]
        assert lines[2] == "at its speed, blocks: pool, +4.0 dB (34.0 dB, 2.00x)"

    @pytest.mark.parametrize("speed", [0.9, 1.0])
    def test_a_port_that_saves_nothing(self, speed: float) -> None:
        lines = frontier.goals([point("port 0.5", speed, 30, "port"), point("keys", 2, 31)])
        assert lines[1].endswith("%")

    def test_pictures_that_are_identical_have_no_nan(self, tmp_path: Path) -> None:
        """Of them evaluations hold a null, as JSON has no infinity."""
        configuration = {"name": "all", "family": "all", "contender": "ours"}
        psnr = {"median": None, "interval": [40.0, None]}
        speed = {"median": 2.0}
        row = {"configuration": configuration, "psnr_db": psnr, "speed_up": speed, "block_speed_up": speed}
        path = tmp_path / "evaluate.json"
        path.write_text(json.dumps({"run": {"model": "bundled"}, "configurations": [row]}))
        ((_, points),) = [frontier.read(path)]
        assert (points[0].psnr, points[0].spread) == (frontier.MOST, (40.0, frontier.MOST))


class TestPresets:
    def test_the_fastest_that_reaches_the_aim_is_taken(self) -> None:
        settings = {"sx": 4, "sy": 4, "ratio": 0.9375, "method": "pool"}
        rows = [
            row("tome 0.5", [30.0] * 8, 1.2, {}),
            row("mild", [37.0] * 8, 1.3, {"ratio": 0.75, "method": "pool"}),
            row("middle", [34.0] * 8, 1.5, {"ratio": 0.75, "method": "todo"}),
            row("strong", [30.5] * 4 + [None] * 4, 1.8, settings),
            row("matched", [60.0] * 8, 2.5, {"ratio": 0.75, "method": "keys"}),
        ]
        found = choose_presets.candidates([evaluation(rows)])
        chosen = choose_presets.chosen(found)
        assert {name: preset.name for name, preset in chosen.items()} == {
            "quality": "mild", "balanced": "middle", "fast": "strong"
        }  # fmt: skip
        assert chosen["fast"].settings == settings

    def test_what_merges_in_a_part_of_the_steps_is_left_out(self) -> None:
        mild = {"ratio": 0.75, "method": "todo"}
        parts = [row(str(part), [60.0] * 8, 2.0, {**mild, **part}) for part in ({"end": 0.9}, {"start": 0.1})]
        rows = [row("tome 0.5", [30.0] * 8, 1.2, {}), row("whole", [37.0] * 8, 1.3, mild), *parts]
        assert [each.name for each in choose_presets.candidates([evaluation(rows)])] == ["whole"]

    def test_one_model_chooses_and_others_are_shown(self) -> None:
        def rows(psnr: float, speed: float) -> list[dict[str, Any]]:
            milder = row("milder", [38.0] * 8, 1.3, {"ratio": 0.5, "method": "todo"})
            return [row("tome 0.5", [30.0] * 8, 1.2, {}), row("a", [psnr] * 8, speed, {"method": "pool"}), milder]

        other = evaluation(rows(20.0, 1.1), "bundled-dit")
        found = choose_presets.candidates([evaluation(rows(37.0, 1.5)), other])
        assert {preset.name for preset in choose_presets.chosen(found).values()} == {"a"}
        assert choose_presets.figures(found[0], "bundled-dit") == "1.10x | -10.0 to -10.0"

    def test_pictures_are_paired_and_the_lower_end_counts(self) -> None:
        reference = row("tome 0.5", [20.0, 40.0, 30.0, 25.0, 35.0, 28.0], 1.2, {})
        other = row("pool", [22.0, 42.0, 32.0, 27.0, 37.0, 30.0], 1.2, {"method": "pool", "ratio": 0.75})
        other["samples"].reverse()
        assert choose_presets.above_reference(other, reference) == (pytest.approx(2.0), pytest.approx(2.0))
        other["samples"][0]["psnr_db"] = 10.0
        assert choose_presets.above_reference(other, reference)[0] < 2.0

    def test_a_model_has_one_evaluation(self) -> None:
        rows = [row("tome 0.5", [30.0] * 8, 1.2, {})]
        with pytest.raises(ValueError, match="one evaluation of each model is needed; got bundled, bundled"):
            choose_presets.candidates([evaluation(rows), evaluation(rows)])

    def test_too_few_pictures_choose_nothing(self) -> None:
        few = row("tome 0.5", [20.0] * 5, 1.2, {})
        with pytest.raises(ValueError, match="5 pictures are too few"):
            choose_presets.above_reference(few, few)

    def test_an_aim_that_nothing_reaches_is_named(self) -> None:
        rows = [row("tome 0.5", [30.0] * 8, 1.2, {}), row("a", [31.0] * 8, 1.5, {"method": "pool", "ratio": 0.75})]
        with pytest.raises(ValueError, match=r"no settings are 6 dB above tome 0\.5 on bundled, as quality is to be"):
            choose_presets.chosen(choose_presets.candidates([evaluation(rows)]))

    def test_they_are_what_the_evaluations_choose(self) -> None:
        found = choose_presets.candidates([json.loads(path.read_text()) for path in EVALUATIONS])
        chosen = {name: ToMeConfig.from_dict(preset.settings) for name, preset in choose_presets.chosen(found).items()}
        assert chosen == {name: ToMeConfig.preset(name) for name in presets()}


@pytest.mark.parametrize("name", OF_SUITES)
def test_evaluations_are_of_the_suite_as_it_is(name: str) -> None:
    rows = json.loads(KEPT[name].read_text())["configurations"]
    found = {each["configuration"]["name"]: each["configuration"] for each in rows}
    suites = [SUITES / f"{suite}.jsonl" for suite in OF_SUITES[name]]
    suite = {each.name: each.to_dict() for path in suites for each in from_suite(path)}
    beside = {each for each in found if each.split()[0] in ("unmerged", "port")} | set(ANCHORS.get(name, ()))
    assert {each: found[each] for each in found if each not in beside} == {
        each: suite[each] for each in suite if each not in beside
    }


@pytest.mark.parametrize("name", ["bundled", "bundled-tiles", "bundled-steps"])
def test_blocks_of_the_unet_are_those_of_both_levels(name: str) -> None:
    """So that the speed-ups of blocks in its tables are of the same blocks."""
    assert json.loads(KEPT[name].read_text())["levels"] == [1, 2]


@pytest.mark.parametrize("path", EVALUATIONS, ids=lambda path: path.stem)
def test_the_goals_are_read_off_them(path: Path) -> None:
    assert any("| 1.2x | " in line for line in frontier.goals(frontier.read(path)[1]))


class TestChoices:
    def test_pictures_are_paired(self) -> None:
        one = row("keys", [31.0, 42.0, 33.0, None, 30.0, 20.0], 1.2, {"method": "keys"})
        other = row("tome", [30.0, 40.0, 30.0, None, 25.0, 14.0], 1.2, {})
        other["samples"].reverse()
        rows = [{"keys": one}, {"keys": one, "tome": other}]
        assert choices.difference(rows, "keys", "tome").startswith("+2.5 [+0.5, ")
        assert choices.difference(rows, "tome", "tome") == "+0.0"
        assert choices.difference(rows, "keys", "pool") == "-"
        del other["samples"][0]
        with pytest.raises(KeyError):
            choices.difference(rows, "keys", "tome")

    def test_each_was_evaluated_on_the_unet(self) -> None:
        read = [json.loads(KEPT[name].read_text()) for name in ("bundled", "bundled-tiles", "bundled-steps")]
        assert [line for line in choices.table(read) if line.endswith("| - |")] == []


def test_the_page_shows_them() -> None:
    evaluations = [frontier.read(path) for path in EVALUATIONS]
    shown = [line for _, points in evaluations for line in frontier.goals(points)]
    shown += frontier.table(evaluations) + frontier.table([frontier.read(KEPT["bundled-tiles"])])
    shown += frontier.table([frontier.read(KEPT["bundled-steps"])])
    shown += choices.table([json.loads(path.read_text()) for path in KEPT.values()])
    read = [json.loads(path.read_text()) for path in EVALUATIONS]
    presets_table = choose_presets.table(choose_presets.candidates(read))
    page = (ROOT / "docs" / "en" / "results" / "fidelity.md").read_text().splitlines()
    assert [line for line in [*shown, *presets_table] if line.startswith("|") and line not in page] == []
