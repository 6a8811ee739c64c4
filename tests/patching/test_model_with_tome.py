"""ToMe on a model: files, parts, and what is left when it is gone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome import applied_tome, apply_tome, remove_tome
from ppdiffusers_tome.patching.layer_class import list_overrides
from ppdiffusers_tome.patching.override import Override
from ppdiffusers_tome.patching.recorder import record_merging
from zoo import unet_spatio_temporal


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


def test_removing_from_a_part_leaves_the_rest_working(unet: tiny.Model, recwarn: pytest.WarningsRecorder) -> None:
    plain = tiny.run_unet(unet)
    apply_tome(unet, **tiny.MERGE_ALL)
    everything, blocks = tiny.run_unet(unet), applied_tome(unet).num_blocks
    remove_tome(unet.down_blocks[0])
    rest = tiny.run_unet(unet)
    assert applied_tome(unet).num_blocks == blocks - 1
    assert np.abs(rest - everything).max() > 1e-4
    assert np.abs(rest - plain).max() > 1e-4
    for part in (*unet.down_blocks, unet.mid_block, *unet.up_blocks):
        remove_tome(part)
    assert unet.tome is None
    assert np.array_equal(tiny.run_unet(unet), plain)
    assert not [each for each in recwarn if "ToMe" in str(each.message)]
    assert not overrides_on(remove_tome(unet))


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
