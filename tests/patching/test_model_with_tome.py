"""ToMe on a model: files, threads, parts, and what is left when it is gone."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome import applied_tome, apply_tome, remove_tome
from ppdiffusers_tome.patching.layer_class import Override, list_overrides
from ppdiffusers_tome.patching.recorder import record_merging
from zoo import Specimen, unet_motion, unet_spatio_temporal
from zoo import unet as unet_specimen


@pytest.fixture
def unet() -> tiny.Model:
    return tiny.unet()


def overrides_on(model: tiny.Model) -> list[Override]:
    return [override for layer in model.sublayers(include_self=True) for override in list_overrides(layer)]


def test_pickle_carries_tome(unet: tiny.Model) -> None:
    try:
        pickle.loads(pickle.dumps(unet))
    except Exception as error:  # what it raises differs by release
        pytest.skip(f"a plain ppdiffusers model cannot be pickled on Paddle {paddle.__version__}: {error}")
    merged = tiny.run_unet(apply_tome(unet, **tiny.MERGE_ALL))
    twin = pickle.loads(pickle.dumps(unet))
    assert np.array_equal(tiny.run_unet(twin), merged)
    assert applied_tome(twin) == applied_tome(unet)
    plain = tiny.run_unet(remove_tome(unet))
    assert np.array_equal(tiny.run_unet(remove_tome(twin)), plain)
    assert not overrides_on(twin)


@pytest.mark.parametrize("specimen", [unet_specimen.SPECIMEN, unet_motion.SPECIMEN], ids=["images", "frames"])
def test_twelve_threads_share_a_model(specimen: Specimen) -> None:
    """At sizes, batches and steps of their own; frames are rows of the batch of a video's attention."""
    sizes = [(16, 16), (8, 32), (32, 8), (13, 10)] * 3
    shared, alone = (apply_tome(specimen.build(), **tiny.MERGE_ALL) for _ in range(2))

    @paddle.no_grad()
    def run(model: tiny.Model, number: int) -> np.ndarray:
        height, width = sizes[number]
        return specimen.run(model, batch=1 + number % 3, height=height, width=width, timestep=50 * number).numpy()

    with ThreadPoolExecutor(len(sizes)) as pool:
        together = list(pool.map(lambda number: [run(shared, number) for _ in range(3)], range(len(sizes))))
    for number, outputs in enumerate(together):
        assert np.abs(np.stack(outputs) - run(alone, number)).max() <= 1e-6


def test_removing_from_a_part_leaves_the_rest_working(unet: tiny.Model) -> None:
    plain = tiny.run_unet(unet)
    apply_tome(unet, **tiny.MERGE_ALL)
    everything, blocks = tiny.run_unet(unet), applied_tome(unet).num_blocks
    remove_tome(unet.down_blocks[0])
    rest = tiny.run_unet(unet)
    assert applied_tome(unet).num_blocks == blocks - 1
    assert np.abs(rest - everything).max() > 1e-4
    assert np.abs(rest - plain).max() > 1e-4
    assert np.array_equal(tiny.run_unet(remove_tome(unet)), plain)
    assert not overrides_on(unet)


def test_weights_of_a_model_with_tome_are_saved_and_loaded(unet: tiny.Model, tmp_path: object) -> None:
    plain = tiny.run_unet(unet)
    weights = {name: value.clone() for name, value in unet.state_dict().items()}
    merged = tiny.run_unet(apply_tome(unet, **tiny.MERGE_ALL))
    unet.save_pretrained(str(tmp_path))
    loaded = type(unet).from_pretrained(str(tmp_path))
    loaded.eval()
    assert np.array_equal(tiny.run_unet(loaded), plain)
    assert np.array_equal(tiny.run_unet(apply_tome(loaded, **tiny.MERGE_ALL)), merged)
    for parameter in unet.parameters():
        parameter.set_value(paddle.zeros_like(parameter))
    unet.set_state_dict(weights)
    assert np.array_equal(tiny.run_unet(unet), merged)


def test_remove_without_apply_does_nothing(unet: tiny.Model) -> None:
    before = tiny.snapshot(unet)
    assert remove_tome(unet) is unet
    assert tiny.snapshot(unet) == before


@pytest.mark.parametrize("path", ["down_blocks.0.attentions.0", "down_blocks.0"])
@pytest.mark.parametrize("settings", [dict(end=0.5), dict(ratio=(0.7, 0.2)), {}], ids=str)
def test_numbers_of_frames_are_no_timesteps(path: str, settings: dict[str, Any]) -> None:
    """Transformers of Stable Video Diffusion embed them with the class of layer that embeds timesteps elsewhere."""
    specimen = unet_spatio_temporal.SPECIMEN
    model = specimen.build()
    plain = specimen.run(model).numpy()
    part = apply_tome(dict(model.named_sublayers())[path], **{"ratio": 0.5, **settings})
    with record_merging(part) as records:
        if settings:
            with pytest.warns(UserWarning, match="does not report its timestep.*runs unmerged, .*; give one ratio"):
                assert np.array_equal(specimen.run(model).numpy(), plain)
        else:
            assert np.abs(specimen.run(model).numpy() - plain).max() > 1e-3
            assert {record.timestep for record in records} == {None}
