"""``compiled_unet``, ``compiled_turns`` and ``compiled_images``: tiny runs of the real thing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import paddle
import pytest

from benchmarks import compiled_images, compiled_turns, compiled_unet, pages
from ppdiffusers_tome.machine import has_precision

pytestmark = [
    pytest.mark.once, pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
]  # fmt: skip


@pytest.mark.sweep
def test_unets_are_measured_in_processes_and_added(tmp_path: Path) -> None:
    arguments = ["--model", "sd15-tiny-random", "--sizes", "64", "--batch", "2", "--repeats", "1", "--variants", "ours"]
    arguments += ["--output", str(tmp_path)]
    compiled_unet.main([*arguments, "--rounds", "1"])
    first = (tmp_path / "compiled_unet.jsonl").read_text()
    compiled_unet.main([*arguments, "--rounds", "2"])
    assert (tmp_path / "compiled_unet.jsonl").read_text().startswith(first)
    rows = json.loads((tmp_path / "compiled_unet.json").read_text())["results"]
    assert [(row["engine"], row["variant"]) for row in rows] == [("compiled", "ours")]
    first, second = rows[0]["rounds"]
    assert (first["compared"], second["compared"]) == (True, False)
    assert all(found["seconds"][0] > 0 and found["peak_mib"] > 0 for found in (first, second))
    assert 0 < first["difference"] < 1e-4


@pytest.mark.sweep
def test_compiled_calls_take_turns_in_processes(tmp_path: Path) -> None:
    arguments = ["--model", "sd15-tiny-random", "--sizes", "64", "--rounds", "2", "--output", str(tmp_path)]
    compiled_turns.main(arguments)
    rows = [*map(json.loads, (tmp_path / "compiled_turns.jsonl").read_text().splitlines())]
    assert [row["row"] for row in rows] == ["float32, none", "float32, preset-balanced"]
    assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 for row in rows)


def test_a_process_answers_when_asked_and_its_end_is_told() -> None:
    numbers = pages.iterate_in_child(range_iterator, 2)
    assert [next(numbers), next(numbers)] == [0, 1]
    with pytest.raises(MemoryError):
        next(numbers)


def range_iterator(end: int) -> Iterator[int]:
    return iter(range(end))


def test_images_are_compared_with_paddles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = ["--settings", "balanced", "--steps", "1", "--output", str(tmp_path)]
    compiled_images.main(["images", "emoji", "--images", "2", *arguments])
    rows = json.loads((tmp_path / "compiled_images_emoji.json").read_text())["rows"]
    assert [(row["engine"], row["guidance"]) for row in rows] == [
        ("Paddle", "7.5"), ("float32", "7.5"), ("Paddle", "1.5"), ("float32", "1.5")
    ]  # fmt: skip
    assert all(float(row["dB, lowest"]) > 60 for row in rows)


@pytest.mark.sweep  # six processes
def test_first_images_are_measured_in_processes(tmp_path: Path) -> None:
    arguments = ["--settings", "unmerged", "--steps", "1", "--rounds", "1", "--output", str(tmp_path)]
    compiled_images.main(["first", "emoji", *arguments])
    rows = json.loads((tmp_path / "compiled_first_emoji.json").read_text())["rows"]
    assert [(row["engine"], row["notes"]) for row in rows] == [
        ("Paddle", "-"), ("float32", "empty"), ("float32", "filled")
    ]  # fmt: skip


@pytest.mark.skipif(has_precision("bfloat16"), reason="the processor has it")
def test_bfloat16_is_refused_where_the_processor_lacks_it(capsys: pytest.CaptureFixture[str]) -> None:
    for main, arguments in ((compiled_unet.main, []), (compiled_images.main, ["images", "emoji"])):
        with pytest.raises(SystemExit):
            main([*arguments, "--precisions", "bfloat16"])
        assert capsys.readouterr().err.splitlines()[-1].endswith("give float32")
