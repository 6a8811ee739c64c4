"""ToMe on a model: copies, threads, parts, failures, and what is left when it is gone."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.models.attention_processor import AttnProcessor

import tiny
from ppdiffusers_tome import applied_tome, apply_tome, remove_tome
from ppdiffusers_tome.patching.overrides.method import MethodOverride, list_overrides

ALL = dict(ratio=0.5, max_downsample=2, merge_crossattn=True, merge_mlp=True)


@pytest.fixture
def unet() -> tiny.Model:
    return tiny.unet()


def overrides_on(model: tiny.Model) -> list[MethodOverride]:
    return [override for layer in model.sublayers(include_self=True) for override in list_overrides(layer)]


def test_deep_copy_works_on_its_own_at_another_size(unet: tiny.Model) -> None:
    wide = tiny.run_unet(apply_tome(tiny.unet(), **ALL), height=8, width=32)
    square = tiny.run_unet(apply_tome(unet, **ALL))
    twin = copy.deepcopy(unet)
    assert np.array_equal(tiny.run_unet(twin, height=8, width=32), wide)
    assert np.array_equal(tiny.run_unet(unet), square)
    own, others = overrides_on(twin), overrides_on(unet)
    assert len(own) == len(others) > 0
    assert not {id(hook.attachment) for hook in own} & {id(hook.attachment) for hook in others}


def test_removing_from_a_deep_copy_leaves_the_original(unet: tiny.Model) -> None:
    plain = tiny.run_unet(unet)
    merged = tiny.run_unet(apply_tome(unet, **ALL))
    twin = remove_tome(copy.deepcopy(unet))
    assert np.array_equal(tiny.run_unet(twin), plain)
    assert np.array_equal(tiny.run_unet(unet), merged)
    assert not overrides_on(twin)


def test_removing_from_the_original_leaves_the_deep_copy(unet: tiny.Model) -> None:
    merged = tiny.run_unet(apply_tome(unet, **ALL))
    twin = copy.deepcopy(unet)
    remove_tome(unet)
    assert np.array_equal(tiny.run_unet(twin), merged)
    assert not overrides_on(unet)


def test_pickle_carries_tome(unet: tiny.Model) -> None:
    try:
        pickle.loads(pickle.dumps(unet))
    except Exception as error:  # what it raises differs by release
        pytest.skip(f"a plain ppdiffusers model cannot be pickled on Paddle {paddle.__version__}: {error}")
    merged = tiny.run_unet(apply_tome(unet, **ALL))
    twin = pickle.loads(pickle.dumps(unet))
    assert np.array_equal(tiny.run_unet(twin), merged)
    assert applied_tome(twin) == applied_tome(unet)
    plain = tiny.run_unet(remove_tome(unet))
    assert np.array_equal(tiny.run_unet(remove_tome(twin)), plain)
    assert not overrides_on(twin)


def test_twelve_threads_share_a_model(unet: tiny.Model) -> None:
    sizes = [(16, 16), (8, 32), (32, 8), (12, 20)] * 3
    apply_tome(unet, **ALL)
    expected = [tiny.run_unet(unet, 1 + i % 3, *size, timestep=50 * i) for i, size in enumerate(sizes)]

    def call(i: int) -> list[np.ndarray]:
        return [tiny.run_unet(unet, 1 + i % 3, *sizes[i], timestep=50 * i) for _ in range(3)]

    with ThreadPoolExecutor(len(sizes)) as pool:
        for outputs, right in zip(pool.map(call, range(len(sizes))), expected, strict=True):
            for output in outputs:
                assert np.abs(output - right).max() <= 1e-6


def test_removing_from_a_part_leaves_the_rest_working(unet: tiny.Model) -> None:
    plain = tiny.run_unet(unet)
    apply_tome(unet, **ALL)
    everything, blocks = tiny.run_unet(unet), applied_tome(unet).num_blocks
    remove_tome(unet.down_blocks[0])
    rest = tiny.run_unet(unet)
    assert applied_tome(unet).num_blocks == blocks - 1
    assert np.abs(rest - everything).max() > 1e-4
    assert np.abs(rest - plain).max() > 1e-4
    assert np.array_equal(tiny.run_unet(remove_tome(unet)), plain)
    assert not overrides_on(unet)


def test_applying_to_a_part_merges_only_there(unet: tiny.Model) -> None:
    plain = tiny.run_unet(unet)
    apply_tome(unet.down_blocks[0], 0.5)
    assert applied_tome(unet).num_blocks == 1
    assert np.abs(tiny.run_unet(unet) - plain).max() > 1e-4
    remove_tome(unet)
    assert np.array_equal(tiny.run_unet(unet), plain)


def test_hooks_of_the_user_stay(unet: tiny.Model) -> None:
    calls: list[str] = []
    block = unet.down_blocks[0].attentions[0].transformer_blocks[0]
    block.attn1.register_forward_pre_hook(lambda layer, inputs: calls.append("before"))
    apply_tome(unet, **ALL)
    block.attn1.register_forward_post_hook(lambda layer, inputs, output: calls.append("after"))
    tiny.run_unet(unet)
    tiny.run_unet(remove_tome(unet))
    assert calls == ["before", "after"] * 2


class Stumbles(AttnProcessor):
    """Raises when told to."""

    broken = False

    def __call__(self, *args: Any, **kwargs: Any) -> paddle.Tensor:
        if self.broken:
            raise RuntimeError("stumbled")
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize("place", ["down_blocks.0", "mid_block", "up_blocks.1"])
@pytest.mark.parametrize("sublayer", ["attn1", "attn2"])
def test_exception_in_a_forward_leaves_the_model_usable(unet: tiny.Model, place: str, sublayer: str) -> None:
    attention = dict(unet.named_sublayers())[f"{place}.attentions.0.transformer_blocks.0.{sublayer}"]
    attention.set_processor(Stumbles())
    plain = tiny.run_unet(unet)
    before = tiny.snapshot(unet)
    merged = tiny.run_unet(apply_tome(unet, **ALL))
    wide = tiny.run_unet(unet, height=8, width=32)
    attention.processor.broken = True
    with pytest.raises(RuntimeError, match="stumbled"):
        tiny.run_unet(unet)
    attention.processor.broken = False
    assert np.array_equal(tiny.run_unet(unet, height=8, width=32), wide)
    assert np.array_equal(tiny.run_unet(unet), merged)
    assert np.array_equal(tiny.run_unet(remove_tome(unet)), plain)
    assert tiny.snapshot(unet) == before


def test_save_and_load_of_a_patched_model(unet: tiny.Model, tmp_path: object) -> None:
    plain = tiny.run_unet(unet)
    merged = tiny.run_unet(apply_tome(unet, **ALL))
    unet.save_pretrained(str(tmp_path))
    loaded = type(unet).from_pretrained(str(tmp_path))
    loaded.eval()
    assert np.array_equal(tiny.run_unet(loaded), plain)
    assert np.array_equal(tiny.run_unet(apply_tome(loaded, **ALL)), merged)
    assert np.array_equal(tiny.run_unet(unet), merged)


def test_state_dict_loads_into_a_patched_model(unet: tiny.Model) -> None:
    weights = {name: value.clone() for name, value in unet.state_dict().items()}
    merged = tiny.run_unet(apply_tome(unet, **ALL))
    for parameter in unet.parameters():
        parameter.set_value(paddle.zeros_like(parameter))
    unet.set_state_dict(weights)
    assert np.array_equal(tiny.run_unet(unet), merged)


def test_remove_without_apply_does_nothing(unet: tiny.Model) -> None:
    before = tiny.snapshot(unet)
    assert remove_tome(unet) is unet
    assert tiny.snapshot(unet) == before
