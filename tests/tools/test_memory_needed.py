"""The least memory of an image: refused before anything is loaded, and never more than it really takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import memory
from ppdiffusers_tome.tools.generation.memory import MemoryNeeds, check_memory
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, find_model

MODEL = find_model("bundled")
PLAIN = MemoryNeeds(MODEL, ToMeConfig(0.0))


@pytest.fixture(autouse=True)
def _eight_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "get_free_bytes", lambda: 8 * 2**30)
    monkeypatch.setattr(memory, "installed_version", lambda package: None)


@pytest.mark.parametrize(
    ("needs", "size", "words"),
    [
        (PLAIN, (100_000, 100_000), r"--height 100000 and --width 100000: .*; choose a smaller image$"),
        (PLAIN, (None, 16_000), r"--width 16000: .* alone takes at least"),
        # 180 * 180 tokens, two rows, two heads: 2 * 2 * 2 * 4 * 180**4 bytes.
        (PLAIN, (1440, 1440), r"the attention of the UNet alone .* 31\.3 GiB .*, or give --chunked-attention$"),
        (replace(PLAIN, rows=1), (1440, 1440), r"the attention of the UNet alone .* 15\.6 GiB"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_cause(needs, size, words):
    with pytest.raises(UserError, match=words):
        check_memory(needs, *size)


def test_what_fits_is_accepted(monkeypatch):
    for needs, size in (
        (PLAIN, (None, None)), (PLAIN, (512, 512)), (replace(PLAIN, tome=ToMeConfig(0.5)), (1440, 1440)),
        (replace(PLAIN, chunked_attention=True), (1440, 1440)),
        (replace(PLAIN, model=ModelSource("some/model", None, None)), (8192, 8192)),
    ):  # fmt: skip
        check_memory(needs, *size)
    monkeypatch.setattr(memory, "installed_version", lambda package: "3.3.1")  # the rest is in the memory of a GPU
    check_memory(PLAIN, 8192, 8192)


@pytest.mark.once
def test_it_is_less_than_what_is_measured(tmp_path):
    given = ["--height", "256", "--width", "256", "--steps", "1", "--prompt", "a photo of a cat"]
    assert main(["compare", *given, "--ratios", "0.5", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "compare.json").read_text())["configurations"]
    for row, ratio in zip(rows, (0.0, 0.5), strict=True):
        if row["peak_bytes"] is None:
            pytest.skip("not measured here")
        needs = replace(PLAIN, tome=ToMeConfig(ratio))
        vae, unet = (
            json.loads((Path(MODEL.arguments[0]) / part / "config.json").read_text()) for part in ("vae", "unet")
        )
        sizes = [size for size, _ in memory._list_needs(needs, vae, unet, 8, 256, 256)]
        assert len(sizes) == 4
        assert 0 < min(sizes) <= max(sizes) < row["peak_bytes"]
