"""ToMe on a model: copies, threads, parts, failures, and what is left when it is gone."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome import applied_tome, apply_tome, remove_tome
from ppdiffusers_tome.patching.layer_class import Override, list_overrides
from zoo import Specimen, unet_motion
from zoo import unet as unet_specimen


@pytest.fixture
def unet() -> tiny.Model:
    return tiny.unet()


def overrides_on(model: tiny.Model) -> list[Override]:
    return [override for layer in model.sublayers(include_self=True) for override in list_overrides(layer)]


def test_deep_copy_works_on_its_own_at_another_size(unet: tiny.Model) -> None:
    wide = tiny.run_unet(apply_tome(tiny.unet(), **tiny.MERGE_ALL), height=8, width=32)
    square = tiny.run_unet(apply_tome(unet, **tiny.MERGE_ALL))
    twin = copy.deepcopy(unet)
    assert np.array_equal(tiny.run_unet(twin, height=8, width=32), wide)
    assert np.array_equal(tiny.run_unet(unet), square)
    own, others = overrides_on(twin), overrides_on(unet)
    assert len(own) == len(others) > 0
    assert not {id(override.state) for override in own} & {id(override.state) for override in others}


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


def test_hooks_of_the_user_stay(unet: tiny.Model) -> None:
    calls: list[str] = []
    block = unet.down_blocks[0].attentions[0].transformer_blocks[0]
    block.attn1.register_forward_pre_hook(lambda layer, inputs: calls.append("before"))
    apply_tome(unet, **tiny.MERGE_ALL)
    block.attn1.register_forward_post_hook(lambda layer, inputs, output: calls.append("after"))
    tiny.run_unet(unet)
    tiny.run_unet(remove_tome(unet))
    assert calls == ["before", "after"] * 2


def test_save_and_load_of_a_patched_model(unet: tiny.Model, tmp_path: object) -> None:
    plain = tiny.run_unet(unet)
    merged = tiny.run_unet(apply_tome(unet, **tiny.MERGE_ALL))
    unet.save_pretrained(str(tmp_path))
    loaded = type(unet).from_pretrained(str(tmp_path))
    loaded.eval()
    assert np.array_equal(tiny.run_unet(loaded), plain)
    assert np.array_equal(tiny.run_unet(apply_tome(loaded, **tiny.MERGE_ALL)), merged)
    assert np.array_equal(tiny.run_unet(unet), merged)


def test_state_dict_loads_into_a_patched_model(unet: tiny.Model) -> None:
    weights = {name: value.clone() for name, value in unet.state_dict().items()}
    merged = tiny.run_unet(apply_tome(unet, **tiny.MERGE_ALL))
    for parameter in unet.parameters():
        parameter.set_value(paddle.zeros_like(parameter))
    unet.set_state_dict(weights)
    assert np.array_equal(tiny.run_unet(unet), merged)


def test_remove_without_apply_does_nothing(unet: tiny.Model) -> None:
    before = tiny.snapshot(unet)
    assert remove_tome(unet) is unet
    assert tiny.snapshot(unet) == before
