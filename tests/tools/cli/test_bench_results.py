"""``bench results``: the table of the page of results, for real on a tiny model, and the page that is drawn of it."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageColor

import tiny
from ppdiffusers_tome.tools.bench import results_page as script
from ppdiffusers_tome.tools.bench.contenders import PRESETS
from ppdiffusers_tome.tools.bench.ledger import BenchLedger
from ppdiffusers_tome.tools.bench.results import CONTENDERS, as_json, minutes_left, plan_of
from ppdiffusers_tome.tools.bench.results_plot import plot
from ppdiffusers_tome.tools.bench.results_table import ROWS, Machine, table, words
from ppdiffusers_tome.tools.bench.task import Task, carry_out
from ppdiffusers_tome.tools.cli.commands.benchmarks.results import REPEATS, SIZES
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.figures import plots
from ppdiffusers_tome.tools.images import read_settings

pytestmark = pytest.mark.once

TINY = ["--model", "sd15-tiny-random", "--sizes", "128", "64"]
PAGE = tiny.ROOT / "docs" / "en" / "results" / "index.md"
# PyTorch is in no environment of the tests: this answers in its place, with seconds that were chosen.
PYTORCH = """#!{python}
import json, os, sys
given = json.loads(sys.argv[2])
with open(r"{asked}", "a") as file:
    print(json.dumps({{**given, "kept": os.environ.get("MALLOC_MMAP_MAX_")}}), file=file)
rounds = [{{given["unmerged"]: 4.0 * (n + 1), given["merged"]: 2.0 + n}} for n in range(given["repeats"])]
print("libraries chatter")
print(json.dumps({{"rounds": rounds, "on": {{"threads": 2, "torch": "2.13.0"}}}}))
"""


BARS = {ImageColor.getrgb(colour) for colour in (plots.GREY, plots.BLUE, plots.ORANGE, plots.GREEN)}


def colours(picture: Image.Image) -> set[Any]:
    return {colour for _, colour in picture.getcolors(10**6)}


def bench(folder: Path, *arguments: str) -> int:
    return main(["bench", "results", *TINY, "--output", str(folder), *arguments])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of two sizes, and beside it what PyTorch's stand-in was asked."""
    folder = tmp_path_factory.mktemp("results")
    python = folder.with_name(f"{folder.name}-python")
    python.write_text(PYTORCH.format(python=sys.executable, asked=folder.with_name(f"{folder.name}-asked")))
    python.chmod(0o755)
    assert bench(folder, "--repeats", "2", "1", "--torch-python", str(python)) == 0
    return folder


@pytest.fixture
def found(measured: Path) -> dict[str, Any]:
    return json.loads((measured / "results.json").read_text())


def test_everybody_is_measured_at_every_size(measured: Path, found: dict[str, Any]) -> None:
    cells = {(cell["size"], cell["contender"]): cell for cell in found["cells"]}
    assert set(cells) == {(size, name) for size in (128, 64) for name in ROWS}
    assert {*CONTENDERS, "torch", "tomesd"} == set(ROWS)
    for cell in cells.values():
        assert 0 < cell["seconds"]["low"] <= cell["seconds"]["median"] <= cell["seconds"]["high"]
        assert cell["speed_up"]["median"] > 0
    assert found["rounds"] == {"128": 2, "64": 1}
    assert (found["attention"], found["batch"], found["ratio"]) == ("chunked", 1, 0.5)
    assert found["on"]["processor"]
    page = (measured / "results.md").read_text()
    assert "chunked attention for all" in page
    assert "rounds: 2 at 128, 1 at 64" in page
    assert f"processor: {found['on']['processor']}" in page
    assert read_settings(measured / "results.png") == found
    with Image.open(measured / "results.png") as picture:
        assert colours(picture) >= BARS


def test_tomesd_is_held_against_pytorchs_own_unmerged_call(measured: Path, found: dict[str, Any]) -> None:
    tomesd = [cell for cell in found["cells"] if cell["contender"] == "tomesd"]
    # 4 / 2 and 8 / 3 in two rounds, and 4 / 2 alone.
    assert [cell["speed_up"]["median"] for cell in tomesd] == pytest.approx([7 / 3, 2])
    assert "| 2.50 s (2.33x, 43%) | 2.00 s (2.00x, 50%) |" in (measured / "results.md").read_text()
    assert found["torch_on"] == {"threads": 2, "torch": "2.13.0"}
    asked = [json.loads(line) for line in measured.with_name(f"{measured.name}-asked").read_text().splitlines()]
    assert [(each["size"], each["repeats"]) for each in asked] == [(128, 2), (64, 1)]
    assert asked[0]["config"]["block_out_channels"] == [16, 32, 32, 32]
    kept = "0" if found["on"]["freed memory"] == "kept" else None
    assert {each["kept"] for each in asked} == {kept}


def test_stopped_run_resumes(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All is there, so nothing is measured again; not even PyTorch's python needs to exist any more."""
    lines = (measured / "results.jsonl").read_bytes()
    assert bench(measured, "--repeats", "2", "1", "--torch-python", "/nowhere/python") == 0
    assert (measured / "results.jsonl").read_bytes() == lines
    assert "about 0 minutes on 2 cores" in capsys.readouterr().err


def test_one_call_sets_things_up_and_all_others_are_timed() -> None:
    plan = plan_of("sd15-tiny-random", "plain", 64, 1)
    variants = plan.variants[:3]
    results = carry_out(Task(plan, plan.settings[0], variants, (0,), 1))
    running = [each["running"] for each in results if "running" in each]
    assert running == [variants[0].name, *(variant.name for variant in variants)]


def test_default_takes_less_than_half_an_hour(tmp_path: Path) -> None:
    plans = [plan_of("sd15-random", "chunked", *each) for each in zip(SIZES, REPEATS, strict=True)]
    with BenchLedger(tmp_path / "results.jsonl", plans[0]) as ledger:
        assert 10 < sum(minutes_left(plan, ledger, Path("python")) for plan in plans) < 30


def test_what_does_not_fit_is_a_cell(tmp_path: Path) -> None:
    plan = plan_of("sd15-random", "plain", 1024, 1)
    with BenchLedger(tmp_path / "results.jsonl", plan) as ledger:
        ledger.note_machine({"processor": "AMD EPYC 9B14 96-Core Processor"})
        unmerged, *others = plan.variants
        ledger.add_out_of_memory(plan.settings[0], unmerged, "time")
        ledger.add_round(plan.settings[0], 0, {variant.name: 2.0 for variant in others})
        machine = Machine(as_json([plan], ledger))
    shown = table([machine])
    assert shown.headings == ("", "1024x1024, AMD EPYC 9B14")
    assert [row[1] for row in shown.rows] == ["out of memory", *["2.00 s"] * len(others)]
    assert not BARS & colours(plot([machine]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "500"], "--sizes 500 must be a multiple of 64; take 512, 768 or 1024"),
        (["--repeats", "0"], "--repeats 0 must be 1 or more"),
        (["--model", "sdxl-random"], "invalid choice: 'sdxl-random'"),
        (["--attention", "fast"], "invalid choice: 'fast'"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, *arguments) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("python", ["/nowhere/python", sys.executable])
def test_python_without_tomesd_is_told_before_anything_is_measured(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "--torch-python", python) == 2
    assert f"--torch-python {python} could not run tomesd" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_files_of_others_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text("mine")
    assert bench(tmp_path) == 2
    assert "results.json exists already" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_text() == "mine"


def test_machines_stand_side_by_side(found: dict[str, Any], tmp_path: Path) -> None:
    other = copy.deepcopy(found)
    other["on"]["processor"] = "Intel(R) Xeon(R) Processor @ 2.60GHz"
    other["cells"] = [cell for cell in other["cells"] if cell["size"] == 64 and cell["contender"] != "tomesd"]
    for folder in ("measured", "images", "en/results"):
        (tmp_path / folder).mkdir(parents=True)
    for name, each in (("amd", found), ("intel", other)):
        (tmp_path / "measured" / f"{name}.json").write_text(json.dumps(each))
    path = tmp_path / "en" / "results" / "index.md"
    path.write_text(f"# Title\n\n{script.BEGIN}\n{script.END}\nthe rest\n")
    script.main([str(path)])
    text = path.read_text()
    here = Machine(found).name
    assert f"|  | 128x128, {here} | 64x64, {here} | 64x64, Intel Xeon |" in text
    assert "relative to PyTorch unmerged | 2.50 s (2.33x, 43%) | 2.00 s (2.00x, 50%) | not measured |" in text
    assert text.startswith("# Title\n\n")
    assert text.endswith("\nthe rest\n")
    assert read_settings(tmp_path / "images" / "results.png") == {"machines": [found, other]}
    script.main([str(path)])  # and drawn again it is the same
    assert path.read_text() == text


def test_the_page_shows_what_is_kept() -> None:
    """Else run: python -m ppdiffusers_tome.tools.bench.results_page docs/en/results/index.md"""
    machines = script.read(PAGE)
    assert PAGE.read_text(encoding="utf-8").split(script.BEGIN)[1].split(script.END)[0].strip() == script.page(machines)
    if machines:
        shown = read_settings(PAGE.parents[2] / "images" / "results.png")
        assert shown == {"machines": [machine.found for machine in machines]}


def test_every_row_has_words() -> None:
    assert [words(name) for name in PRESETS.values()] == [
        "preset balanced, 1 key in 9", "preset fast, 1 key in 16, 2 levels", "preset quality, 1 key in 4",
    ]  # fmt: skip
    assert len({words(name) for name in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        ("AMD EPYC", "AMD EPYC"),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel Xeon"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "Intel Xeon Platinum 8481C"),
        ("arm", "arm"),
    ],
)
def test_machine_is_named_by_its_processor(processor: str, name: str) -> None:
    assert Machine({"on": {"processor": processor}}).name == name
