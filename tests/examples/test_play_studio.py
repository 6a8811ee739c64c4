"""What the page generates: the images of the other commands, one at a time, cancelled when asked to."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from page import render_page
from PIL import Image
from studio import ImagePair, RefusedError, Studio

from examples.helpers import encode_photo, make_form, make_studio
from ppdiffusers_tome.compilation.model import CompiledModel
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.console.tome_arguments import DEFAULT_PRESET
from ppdiffusers_tome.tools.measure.similarity import compare_images
from tools.cli.helpers import SMALL, draw_square, write_dit


def compare(studio: Studio, report: Callable[[Any], Any] = print, **fields: Any) -> ImagePair:
    return studio.compare(studio.prepare(make_form(studio, **fields)), report, print)


def read_page(studio: Studio, language: str) -> dict[str, Any]:
    """What a page begins with, and what is chosen."""
    html = render_page(studio, language)
    begin = json.loads(unescape(re.search('data-begin="(.*?)"', html)[1]))
    return {**begin, "chosen": dict(re.findall('name="(\\w+)" value="(\\w+)" checked', html))}


def images_equal(first: Image.Image, second: Image.Image) -> bool:
    return np.array_equal(np.asarray(first), np.asarray(second))


def test_images_are_those_of_the_pipeline(studio: Studio) -> None:
    result = compare(studio, seed=3, steps=10, cache=0.5)
    loaded = studio.plain
    merging = ToMeConfig(ratio=0.5, cache=0.5)
    for tome, image in ((ToMeConfig(0.0), result.unmerged.image), (merging, result.merged.image)):
        loaded.apply(tome)
        assert images_equal(image, loaded.generate(studio.prompt, 3, steps=10).image)
    assert 10 < compare_images(result.unmerged.image, result.merged.image)[0] < 100
    assert min(result.merged.seconds, result.unmerged.seconds) > 0
    notes = dict(result.notes)
    notes.pop("busy_note", None)
    assert list(notes) == ["request_note", "applied_note", "skipped_note", "measured_note"]
    assert notes["request_note"] == {"prompt": studio.prompt, "steps": 10, "seed": 3, "height": 64, "width": 64}
    assert notes["skipped_note"] == {"denoiser": "unet", "skipped": 5, "calls": 10}


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
def test_compiling_again_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two settings that take turns, where memory is short."""
    pytest.importorskip("openvino")
    make_program, lost = CompiledModel._make_program, [0]

    def take_longer(*given: Any) -> Any:
        lost[0] += 1000
        return make_program(*given)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("ppdiffusers_tome.compilation.model._MOST_BYTES", 0)
    monkeypatch.setattr(CompiledModel, "_make_program", take_longer)
    monkeypatch.setattr("ppdiffusers_tome.tuning.measurement.read_clock", lambda: time.perf_counter() + lost[0])
    studio = make_studio("--model", "emoji", "--compile", "--steps", "1")
    for ratio in (0.3, 0.5, 0.3):
        comparison = compare(studio, ratio=ratio)
        assert max(comparison.unmerged.seconds, comparison.merged.seconds) < 1000
    assert lost[0] >= 4000  # programs of two settings, made again, and others


def test_the_settings_of_readme_and_those_of_tune_can_be_made(studio: Studio, tmp_path: Path) -> None:
    found = ToMeConfig(0.3, cache=0.4)
    found.save(tmp_path / "tome.json")
    given = make_studio(*SMALL, "--config", str(tmp_path / "tome.json"))
    for maker, form, tome in (
        (studio, {"preset": "none", "cache": 0.2, "steps": 10}, ToMeConfig(0, cache=0.2)),
        (studio, {"preset": "balanced"}, ToMeConfig.preset("balanced")),
        (given, {"preset": "given"}, found),
    ):
        assert maker.prepare(make_form(maker, **form)).tome == tome
    ToMeConfig(0).save(tmp_path / "nothing.json")
    with pytest.raises(UserError, match="merges nothing and has no cache"):
        make_studio(*SMALL, "--config", str(tmp_path / "nothing.json"))


def test_the_steps_that_a_cache_needs_are_those_of_the_scheduler() -> None:
    """Of 8 steps of PNDM there are 9 calls, of which some are skipped."""
    studio = make_studio(*SMALL, "--scheduler", "pndm")
    request = studio.prepare(make_form(studio, preset="none", cache=0.2, steps=8))
    assert (request.tome, request.loaded.count_calls()) == (ToMeConfig(0.0, cache=0.2), 9)
    with pytest.raises(RefusedError, match="no_change"):
        studio.prepare(make_form(studio, preset="none", cache=0.2, steps=7))


def test_the_edges_of_a_photo_guide(studio: Studio) -> None:
    free, weak = compare(studio), compare(studio, photo=encode_photo(draw_square()), strength=0)
    difference = np.asarray(weak.unmerged.image).astype(int) - np.asarray(free.unmerged.image)
    assert np.abs(difference).max() <= 1
    empty = studio.prepare(make_form(studio, photo=encode_photo(Image.new("RGB", (64, 64)))))
    assert "no_edges" in [key for key, _ in empty.warnings]


def test_a_dit_generates_classes_after_one_was_cancelled(tmp_path: Path) -> None:
    write_dit(tmp_path, {"0": "cat", "1": "coffee"})
    studio = make_studio("--model", str(tmp_path), "--steps", "2", "--prompt", "cat")
    assert (studio.guided, studio.prompt) == (None, "cat")
    page = read_page(studio, "zh")
    assert page["fields"]["prompt"]["value"] == "cat"
    assert page["chosen"]["preset"] == "none", "on a transformer of classes the cache keeps more than merging"
    assert {"size", "negative", "guide", "known"} <= {*page["hidden"]}

    def leave(event: Any) -> None:
        if event == ("warm_up", 1, 1):
            raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        compare(studio, leave)
    result = compare(studio, prompt="coffee", seed=3, steps=2)
    loaded = studio.plain
    loaded.apply(ToMeConfig(ratio=0.5))
    assert images_equal(result.merged.image, loaded.generate("1", 3).image)
    with pytest.raises(RefusedError, match="unknown_class"):
        compare(studio, prompt="tea")


def test_a_page_begins_with_the_preset_of_the_commands_and_says_how_images_are_computed(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, plain = read_page(studio, "en"), studio.plain
    assert page["chosen"]["preset"] == DEFAULT_PRESET
    assert (page["fields"]["ratio"]["value"], page["fields"]["cache"]["value"]) == (0.5, 0)
    for changed, language, words in (
        ({}, "en", "float32"),
        ({"compile": "bfloat16"}, "en", "float32 · compiled in bfloat16"),
        ({"compile": "bfloat16"}, "zh", "float32 · 以 bfloat16 编译"),
    ):  # fmt: skip
        monkeypatch.setattr(studio, "plain", replace(plain, settings=replace(plain.settings, **changed)))
        assert f"{words}</p>" in render_page(studio, language)
