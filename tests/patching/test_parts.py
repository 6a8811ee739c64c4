"""ToMe on a part of a model, which knows less than the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.patching.recorder import record_merging
from zoo import specimens


@pytest.mark.parametrize("path", ["down_blocks.0.attentions.0", "down_blocks.0"])
@pytest.mark.parametrize("settings", [dict(end=0.5), dict(ratio=(0.7, 0.2)), {}], ids=str)
def test_numbers_of_frames_are_no_timesteps(path: str, settings: dict[str, Any]) -> None:
    """Transformers of Stable Video Diffusion embed them with the class of layer that embeds timesteps elsewhere."""
    specimen = next(specimen for specimen in specimens() if specimen.name == "unet_spatio_temporal")
    model = specimen.build()
    plain = specimen.run(model).numpy()
    part = apply_tome(dict(model.named_sublayers())[path], **{"ratio": 0.5, **settings})
    with record_merging(part) as records:
        if settings:
            with pytest.warns(UserWarning, match="does not report its timestep, so it runs unmerged"):
                assert np.array_equal(specimen.run(model).numpy(), plain)
        else:
            assert np.abs(specimen.run(model).numpy() - plain).max() > 1e-3
            assert {record.timestep for record in records} == {None}
