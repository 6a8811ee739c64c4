"""Random destinations: from the seed, the timestep and the grid alone, and the same for every image."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome import apply_tome


@pytest.fixture(scope="module")
def unet() -> tiny.Model:
    return tiny.unet()


def build_in_double_precision(batch: int) -> tuple[tiny.Model, paddle.Tensor, paddle.Tensor]:
    """A UNet, latents and texts: in float32 another batch may settle a near tie of cosines another way."""
    return tiny.unet().to(dtype="float64"), tiny.latent(batch).astype("float64"), tiny.text(batch).astype("float64")


@paddle.no_grad()
def test_odd_batch_keeps_randomness() -> None:
    unet, sample, text = build_in_double_precision(3)
    apply_tome(unet, use_rand=False, **tiny.MERGE_ALL)
    regular = unet(sample, 500, text).sample.numpy()
    apply_tome(unet, **tiny.MERGE_ALL)
    random = unet(sample, 500, text).sample.numpy()
    assert np.abs(random - regular).max() > 1e-3
    alone = [unet(sample[i : i + 1], 500, text[i : i + 1]).sample.numpy() for i in range(3)]
    assert np.abs(random - np.concatenate(alone)).max() <= 1e-5


def test_timestep_gives_other_destinations() -> None:
    """The timestep reaches nothing of this model but ToMe, so only destinations can differ."""
    unet = tiny.unet()
    for layer in (unet.time_embedding.linear_1, unet.time_embedding.linear_2):
        layer.weight.set_value(paddle.zeros_like(layer.weight))
    assert np.array_equal(tiny.run_unet(unet, timestep=10), tiny.run_unet(unet, timestep=11))
    apply_tome(unet, 0.5)
    # ppdiffusers truncates a Python number; fractional steps (Euler's, Karras') come as tensors.
    outputs = [tiny.run_unet(unet, timestep=step) for step in (10, 11, paddle.to_tensor(10.25), 10)]
    assert np.array_equal(outputs[0], outputs[3])
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(outputs[i] - outputs[j]).max() > 1e-4
    apply_tome(unet, 0.5, use_rand=False)
    assert np.array_equal(tiny.run_unet(unet, timestep=10), tiny.run_unet(unet, timestep=11))


def test_same_seed_gives_the_same_output_in_another_process(unet: tiny.Model, tmp_path: object) -> None:
    file = f"{tmp_path}/output.npy"
    code = f"""
import sys, paddle, tiny, numpy as np, ppdiffusers_tome
paddle.seed(123)
unet = ppdiffusers_tome.apply_tome(tiny.unet(), seed=9, **{tiny.MERGE_ALL!r})
np.save(sys.argv[1], tiny.run_unet(unet))
print("true")
"""
    assert tiny.run_in_new_process(code, file)
    assert np.array_equal(np.load(file), tiny.run_unet(apply_tome(unet, seed=9, **tiny.MERGE_ALL)))
