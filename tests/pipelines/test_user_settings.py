"""What users do to a Stable Diffusion pipeline, before or after ``apply_tome``, goes on working with merging on.

Attention processors and what is loaded into a UNet alone are in ``tests/patching/test_processors.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import ppdiffusers
import pytest
from ppdiffusers import StableDiffusionPipeline
from ppdiffusers.models.attention_processor import Attention

import tiny
from zoo.specimen import normal


@pytest.fixture
def lora(tmp_path: Path) -> str:
    """A LoRA of rank two for every attention of the UNet, as ppdiffusers writes it after training."""
    weights = {}
    for path, attention in tiny.unet().named_sublayers():
        if isinstance(attention, Attention):
            for name in ("to_q", "to_k", "to_v", "to_out.0"):
                linear = attention.to_out[0] if name == "to_out.0" else getattr(attention, name)
                number = len(weights)
                weights[f"{path}.{name}.lora.down.weight"] = normal(linear.in_features, 2, seed=number)
                weights[f"{path}.{name}.lora.up.weight"] = 0.3 * normal(2, linear.out_features, seed=number + 1)
    StableDiffusionPipeline.save_lora_weights(str(tmp_path), unet_lora_layers=weights, to_diffusers=False)
    return str(tmp_path)


def test_a_lora_may_come_before_or_after_and_be_unloaded(lora: str) -> None:
    before, after = tiny.pipeline(), tiny.pipeline()
    before.load_lora_weights(lora, from_diffusers=False)
    plain = tiny.run_pipeline(before)
    merged = tiny.run_pipeline(before.apply_tome(0.5).to("cpu"))
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-4

    without = tiny.run_pipeline(after.apply_tome(0.5))
    after.load_lora_weights(lora, from_diffusers=False)
    assert np.array_equal(tiny.run_pipeline(after), merged)
    assert np.abs(merged - without).max() > 1e-4
    if ppdiffusers.__version__ > "0.29.0":  # before, ppdiffusers itself raises errors of outdated names
        after.unload_lora_weights()
        assert np.abs(tiny.run_pipeline(after) - without).max() <= 1e-6
        after.load_lora_weights(lora, from_diffusers=False)
    assert np.array_equal(tiny.run_pipeline(before.remove_tome()), plain)
    assert np.array_equal(tiny.run_pipeline(after.remove_tome()), plain)
