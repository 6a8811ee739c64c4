"""The least memory of an image: refused before anything is loaded, and never more than it really takes."""

from __future__ import annotations

import json

import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import memory
from ppdiffusers_tome.tools.generation.memory import check_memory, compute_needs
from ppdiffusers_tome.tools.generation.model_sources import find_model

MODEL = find_model("bundled").folder
UNMERGED = ToMeConfig(0.0)


@pytest.fixture(autouse=True)
def _eight_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "get_free_bytes", lambda: 8 * 2**30)
    monkeypatch.setattr(memory, "installed_version", lambda package: None)


@pytest.mark.parametrize(
    ("size", "rows", "words"),
    [
        ((100_000, 100_000), 2, r"--height 100000 and --width 100000: .*; choose a smaller image$"),
        ((None, 16_000), 2, r"--width 16000: .* alone takes at least"),
        # 180 * 180 tokens, two rows, two heads: 2 * 2 * 2 * 4 * 180**4 bytes.
        ((1440, 1440), 2, r"the attention of the UNet alone .* 31\.3 GiB .*, or give --chunked-attention$"),
        ((1440, 1440), 1, r"the attention of the UNet alone .* 15\.6 GiB"),
    ],
)
def test_image_that_does_not_fit_is_refused_with_its_cause(size, rows, words):
    with pytest.raises(UserError, match=words):
        check_memory(MODEL, UNMERGED, *size, rows=rows)


def test_image_that_fits_is_accepted(monkeypatch):
    check_memory(MODEL, UNMERGED, None, None)
    check_memory(MODEL, ToMeConfig(0.5), 1440, 1440)
    check_memory(MODEL, UNMERGED, 1440, 1440, chunked_attention=True)
    check_memory(None, UNMERGED, 8192, 8192)  # a hub's
    monkeypatch.setattr(memory, "installed_version", lambda package: "3.3.1")  # the rest is in the memory of a GPU
    check_memory(MODEL, UNMERGED, 8192, 8192)


@pytest.mark.once
def test_it_is_less_than_what_is_measured(tmp_path):
    given = ["--height", "256", "--width", "256", "--steps", "1", "--prompt", "a photo of a cat"]
    assert main(["compare", *given, "--ratios", "0.5", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "compare.json").read_text())["configurations"]
    for row, ratio in zip(rows, (0.0, 0.5), strict=True):
        needs = compute_needs(MODEL, ToMeConfig(ratio), 256, 256, rows=2)
        assert len(needs) == 3
        assert row["peak_bytes"] is None or 0 < min(needs.values()) <= max(needs.values()) < row["peak_bytes"]
