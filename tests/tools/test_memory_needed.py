"""The least memory of an image: refused before anything is loaded, and never more than it really takes."""

from __future__ import annotations

import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.generation import memory
from ppdiffusers_tome.tools.generation.memory import check_memory
from ppdiffusers_tome.tools.generation.model_sources import find_model

MODEL = find_model("bundled").folder
UNMERGED = ToMeConfig(0.0)


def test_image_that_does_not_fit_is_refused_with_its_cause(monkeypatch):
    monkeypatch.setattr(memory, "get_free_bytes", lambda: 8 * 2**30)
    monkeypatch.setattr(memory, "find_version", lambda package: None)
    with pytest.raises(UserError, match=r"^width 16000: .* alone takes at least .* choose a smaller image$"):
        check_memory(MODEL, UNMERGED, None, 16_000)
    # 180 * 180 tokens, two rows, two heads: 2 * 2 * 2 * 4 * 180**4 bytes.
    with pytest.raises(UserError, match=r"of the UNet alone .* 31\.3 GiB .*, or give --chunked-attention$"):
        check_memory(MODEL, UNMERGED, 1440, 1440)
    check_memory(MODEL, UNMERGED, 1440, 1440, chunked_attention=True)
    check_memory(MODEL, ToMeConfig(0.5), 1440, 1440)
    check_memory(None, UNMERGED, 8192, 8192)  # a hub's
    monkeypatch.setattr(memory, "find_version", lambda package: "3.3.1")  # the rest is in the memory of a GPU
    check_memory(MODEL, UNMERGED, 8192, 8192)
