"""What the page generates: the images of the other commands, one at a time, cancelled when asked to."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from PIL import Image

from ppdiffusers_tome.compilation.model import CompiledModel
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from results import render_comparison
from words import translate
from studio import ImagePair, RefusedError, Studio
from tools.cli.conftest import SMALL, draw_square, write_dit
from examples.playing import make_form, make_studio


def compare(
    studio: Studio, photo: Image.Image | None = None, stages: list[Any] | None = None,
    cancelled: threading.Event | None = None, **fields: Any,
) -> ImagePair:  # fmt: skip
    request = studio.prepare(make_form(studio, **fields), photo)
    request = request if cancelled is None else replace(request, cancelled=cancelled)

    def report(*stage: Any) -> None:
        if stages is not None:
            stages.append(stage)

    _, comparison = studio.compare(request, None, report)
    assert isinstance(comparison, ImagePair)
    return comparison


def images_equal(first: Image.Image, second: Image.Image) -> bool:
    return np.array_equal(np.asarray(first), np.asarray(second))


def test_images_are_those_of_the_pipeline(studio: Studio) -> None:
    result = compare(studio, seed=3, steps=10, cache=0.5)
    loaded = replace(studio.plain, settings=replace(studio.plain.settings, seed=3))
    merging = ToMeConfig(ratio=0.5, cache=0.5)
    for tome, image in ((None, result.unmerged.image), (merging, result.merged.image)):
        loaded.apply(tome)
        assert images_equal(image, loaded.generate(studio.prompt, 0, None, steps=10).image)
    assert 10 < result.similarity.psnr < 100
    assert min(result.merged.seconds, result.unmerged.seconds) > 0
    notes = dict(result.notes)
    assert list(notes) == ["applied_note", "skipped_note", "measured_note", "unusual_size"]
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
    monkeypatch.setattr("ppdiffusers_tome.tools.measure.meter.read_clock", lambda: time.perf_counter() + lost[0])
    studio = make_studio("--model", "emoji", "--compile", "--steps", "1")
    for ratio in (0.3, 0.5, 0.3):
        comparison = compare(studio, ratio=ratio)
        assert max(comparison.unmerged.seconds, comparison.merged.seconds) < 1000
    assert lost[0] >= 4000  # programs of two settings, made again, and others
    studio.close()


def test_a_page_in_chinese_has_no_sentence_in_english(studio: Studio) -> None:
    given = {"steps": 9, "cache": 0.3, "prompt": "a dog " * 40, "negative_prompt": "red " * 80}
    comparison = compare(studio, **given)
    keys = {key for key, _ in comparison.notes}
    assert keys >= {"skipped_note", "too_long", "negative_too_long", "unknown_subject", "unusual_size"}
    text = re.sub("<[^>]*>", " ", render_comparison(partial(translate, "zh"), comparison))
    assert "9 次调用" in text
    assert not re.search("[A-Za-z]+( [A-Za-z]+){2}", text)


def test_the_settings_of_readme_and_those_of_tune_can_be_made(studio: Studio, tmp_path: Path) -> None:
    found = ToMeConfig(0.3, cache=0.4)
    found.save(tmp_path / "tome.json")
    given = make_studio(*SMALL, "--config", str(tmp_path / "tome.json"))
    for maker, form, tome in (
        (studio, {"preset": "none", "cache": 0.2, "steps": 10}, ToMeConfig(0, cache=0.2)),
        (studio, {"preset": "balanced"}, ToMeConfig.preset("balanced")),
        (given, {"preset": "given"}, found),
    ):
        assert maker.prepare(make_form(maker, **form), None).tome == tome
    given.close()
    with pytest.raises(UserError, match="--compile makes programs that do the same in every step"):
        make_studio(*SMALL, "--config", str(tmp_path / "tome.json"), "--compile")
    ToMeConfig(0).save(tmp_path / "nothing.json")
    with pytest.raises(UserError, match="merges nothing and has no cache"):
        make_studio(*SMALL, "--config", str(tmp_path / "nothing.json"))


def test_the_steps_that_a_cache_needs_are_those_of_the_scheduler() -> None:
    """Of 8 steps of PNDM there are 9 calls, of which some are skipped."""
    studio = make_studio(*SMALL, "--scheduler", "pndm")
    request = studio.prepare(make_form(studio, preset="none", cache=0.2, steps=8), None)
    assert (request.tome, request.loaded.count_calls()) == (ToMeConfig(0.0, cache=0.2), 9)
    with pytest.raises(RefusedError, match="no_change"):
        studio.prepare(make_form(studio, preset="none", cache=0.2, steps=7), None)


def test_the_edges_of_a_photo_guide_and_a_lost_photo_is_asked_for(studio: Studio) -> None:
    free, weak = compare(studio), compare(studio, photo=draw_square(), has_photo=True, strength=0)
    difference = np.asarray(weak.unmerged.image).astype(int) - np.asarray(free.unmerged.image)
    assert np.abs(difference).max() <= 1
    assert ("no_edges", {}) in compare(studio, photo=Image.new("RGB", (64, 64))).notes
    with pytest.raises(RefusedError, match="lost_photo"):
        compare(studio, has_photo=True)


def test_a_dit_generates_classes_after_one_was_cancelled(tmp_path: Path) -> None:
    write_dit(tmp_path, {"0": "cat", "1": "coffee"})
    studio = make_studio("--model", str(tmp_path), "--steps", "2")
    assert (studio.guided, studio.prompt) == (None, "cat")
    pytest.importorskip("gradio")
    from page import StudioPage

    page = StudioPage(studio, "zh")
    assert page.blocks.fns, "its page has other fields"
    assert page._form["preset"].value == "none"
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CancelledError):
        compare(studio, cancelled=cancelled)
    result = compare(studio, prompt="coffee", seed=3, steps=2)
    loaded = replace(studio.plain, settings=replace(studio.plain.settings, seed=3))
    loaded.apply(ToMeConfig(ratio=0.5))
    assert images_equal(result.merged.image, loaded.generate("1", 0, None).image)
    with pytest.raises(RefusedError, match="unknown_class"):
        compare(studio, prompt="tea")
    studio.close()


def test_a_page_says_how_images_are_computed_and_offers_no_cache_where_models_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gradio")
    from page import StudioPage

    write_dit(tmp_path, {"0": "cat"})
    studio = make_studio("--model", str(tmp_path))
    plain = studio.plain
    for changed, language, words, has_cache in (
        ({}, "en", "float32", True),
        ({"cpu_kernels": True}, "en", "float32 · CPU kernels", True), ({"cpu_kernels": True}, "zh", "CPU 算子", True),
        ({"compile": "bfloat16"}, "en", "float32 · compiled in bfloat16", False),
        ({"compile": "bfloat16"}, "zh", "float32 · 以 bfloat16 编译", False),
    ):  # fmt: skip
        monkeypatch.setattr(studio, "plain", replace(plain, settings=replace(plain.settings, **changed)))
        page = StudioPage(studio, language)
        header = next(block for block in page.blocks.blocks.values() if block.get_block_name() == "markdown")
        assert header.value.endswith(words)
        preset, cache = page._form["preset"], page._form["cache"]
        values = [value for _, value in preset.choices]
        assert (cache.visible, "none" in values) == (has_cache, has_cache)
        assert preset.value == ("none" if has_cache else "balanced"), "a compiled model refuses the cache"
        assert (preset.info == translate(language, "merging_compiled")) == (not has_cache)
        (show,) = [function.js for function in page.blocks.fns.values() if "visible" in str(function.js)]
        assert f"visible: {str(has_cache).lower()} &&" in show, "nor comes the slider with another preset"
    studio.close()
