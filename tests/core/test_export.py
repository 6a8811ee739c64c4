"""A merging UNet as a static program: saved, loaded and run, it gives what it gives in dynamic mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.static import InputSpec

import tiny
from ppdiffusers_tome import apply_tome


class Positional(paddle.nn.Layer):
    """A UNet that takes and gives plain tensors."""

    def __init__(self, unet: tiny.Model) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, latent: paddle.Tensor, timestep: paddle.Tensor, text: paddle.Tensor) -> paddle.Tensor:
        return self.unet(latent, timestep, text, return_dict=False)[0]


@pytest.mark.parametrize(
    "settings",
    [{}, dict(use_rand=False), dict(tile=4), dict(reuse_blocks=True), dict(reuse_steps=4, reuse_blocks=True, tile=4)],
    ids=["default", "regular", "tile", "blocks", "all"],
)
def test_saved_program_equals_dynamic_mode(settings: dict[str, Any], tmp_path: Path) -> None:
    unet = apply_tome(tiny.unet(), 0.5, max_downsample=2, merge_mlp=True, **settings)
    model = Positional(unet)
    model.eval()
    specs = [InputSpec([2, 4, 16, 16], "float32"), InputSpec([1], "int64"), InputSpec(tiny.text().shape, "float32")]
    paddle.jit.save(paddle.jit.to_static(model, input_spec=specs, full_graph=True), str(tmp_path / "unet"))
    loaded = paddle.jit.load(str(tmp_path / "unet"))
    outputs = []
    for timestep in (500, 3):  # destinations follow the timestep in the program too
        with paddle.no_grad():
            output = loaded(tiny.latent(), paddle.to_tensor([timestep]), tiny.text()).numpy()
        assert np.abs(output - tiny.run_unet(unet, timestep=timestep)).max() <= 1e-6
        outputs.append(output)
    assert not np.array_equal(*outputs)
