"""Merging methods: what each makes of a group of tokens, and how each sits in a model."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from patching.contract import marks_of
from ppdiffusers_tome import NothingToMergeError, ToMeConfig, apply_tome, remove_tome
from ppdiffusers_tome.merging.chosen_keys import select_key_tokens
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.merging.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.layers import find_layer
from zoo import Specimen, specimens
from zoo.added_kv import SPECIMEN as ADDED_KV
from zoo.added_kv import TEXT_DIM as ADDED_TEXT_DIM
from zoo.specimen import TEXT_TOKENS, Inputs

GRID = Grid(6, 8)
EVERY = sorted(METHODS)
KEYS_ONLY = [name for name in EVERY if METHODS[name].keeps_queries]


class TestSomeKeys:
    @pytest.mark.parametrize(
        "partition", [regular_partition(GRID, 2, 2), random_partition(GRID, 2, 2, seed=1, timestep=None)]
    )
    @pytest.mark.parametrize("dropped", [1, 17, 24, 36])
    def test_destinations_stay_and_the_rest_is_spread_evenly(self, partition: Partition, dropped: int) -> None:
        chosen = select_key_tokens(partition, dropped).numpy()
        assert len(set(chosen.tolist())) == len(chosen) == GRID.num_tokens - dropped
        assert set(partition.destinations.numpy().tolist()) <= set(chosen.tolist())
        by_cell = np.zeros((3, 4), int)
        for token in chosen:
            by_cell[token // 8 // 2, token % 8 // 2] += 1
        assert by_cell.max() - by_cell.min() <= 1

    @pytest.mark.parametrize(("stride", "side"), [(3, 16), (3, 20), (5, 12)])
    def test_all_tokens_give_keys_equally_often(self, stride: int, side: int) -> None:
        """With a stride of 3, the last of 16 columns and rows have no destination."""
        grid, num_steps = Grid(side, side), 1500
        dropped, counts = grid.num_merged(1 - 1 / stride**2), np.zeros([side, side])
        for step in range(num_steps):
            partition = random_partition(grid, stride, stride, seed=1, timestep=paddle.to_tensor([step / 3]))
            chosen = select_key_tokens(partition, dropped).numpy()
            counts[np.divmod(chosen, side)] += 1
        expected = num_steps * (grid.num_tokens - dropped) / grid.num_tokens
        assert np.abs(counts / expected - 1).max() < 0.5
        whole = side - side % stride
        outside = counts[whole:].sum() + counts[:whole, whole:].sum()
        assert outside / counts.sum() == pytest.approx(1 - whole**2 / side**2, rel=0.15)


def test_each_method_gives_another_output_and_comes_off() -> None:
    unet = tiny.unet()
    outputs = [tiny.run_unet(unet)]
    for method in EVERY:
        outputs.append(tiny.run_unet(apply_tome(unet, 0.5, method=method, max_downsample=8)))
        assert np.isfinite(outputs[-1]).all()
        assert np.array_equal(tiny.run_unet(remove_tome(unet)), outputs[0])
    assert all(np.abs(one - other).max() > 1e-4 for one, other in combinations(outputs, 2))


@pytest.mark.parametrize("method", EVERY)
def test_tokens_that_are_equal_lose_nothing(method: str) -> None:
    """An image of one colour has one token many times: whatever stands for many is as good as all."""
    block = tiny.make_denoiser(tiny.unet().down_blocks[0].attentions[0])
    flat = paddle.ones([2, 8, 16, 16]) * paddle.linspace(-1, 1, 8).reshape([1, 8, 1, 1])
    with paddle.no_grad():
        plain = block(flat, encoder_hidden_states=tiny.text()).sample.numpy()
        merged = apply_tome(block, 0.7, method=method)(flat, encoder_hidden_states=tiny.text()).sample.numpy()
    np.testing.assert_allclose(merged, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "specimen",
    [
        pytest.param(each, id=each.name, marks=marks_of(each))
        for each in specimens() if each.reason is None and each.is_there
    ],
)
@pytest.mark.parametrize("method", KEYS_ONLY)
def test_fewer_keys_reach_keys_and_values_and_no_queries(specimen: Specimen, method: str) -> None:
    """In every kind of block that has layers for them; elsewhere it is refused in plain words."""
    model = specimen.build()
    ratio: dict[str, Any] = dict(ratio=0.5, max_downsample=8, method=method)
    blocks = [block for block in find_blocks(model) if block.list_points(ToMeConfig(**ratio))]
    if not blocks:
        with pytest.raises(NothingToMergeError, match=rf"nothing to merge with method='{method}'.*try .*method='tome'"):
            apply_tome(model, **ratio)
        return
    counts: dict[str, list[int]] = {"to_q": [], "to_k": [], "to_v": []}
    for block in blocks:
        point = block.adapter.points["merge_attn"][0]
        for name in counts:
            find_layer(block.block, point.join_path(name)).register_forward_post_hook(_counting(counts[name]))
    height, width = specimen.size or (16, 16)
    paddle.seed(0)
    with paddle.no_grad():
        plain = specimen.run(model, batch=2, height=height, width=width, timestep=500).numpy()
        whole = {name: list(seen) for name, seen in counts.items()}
        [seen.clear() for seen in counts.values()]
        merged = specimen.run(apply_tome(model, **ratio), batch=2, height=height, width=width, timestep=500).numpy()
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-5
    assert counts["to_q"] == whole["to_q"]
    for name in ("to_k", "to_v"):
        assert len(counts[name]) == len(whole[name])
        assert all(few < all_ for few, all_ in zip(counts[name], whole[name], strict=True))


def _counting(seen: list[int]) -> Any:
    return lambda layer, inputs, output: seen.append(output.shape[1])


def _keys_elsewhere(attention: Any, hidden_states: paddle.Tensor, **given: Any) -> paddle.Tensor:
    """Keys that other layers make of all tokens, and a mask as ppdiffusers' processors ask for one."""
    batch, tokens, _ = hidden_states.shape
    mask = attention.prepare_attention_mask(None, tokens, batch)
    query, key = attention.to_q(hidden_states), hidden_states @ attention.to_k.weight
    scores = (query @ key.transpose([0, 2, 1])).unsqueeze(1)
    weights = paddle.nn.functional.softmax(scores if mask is None else scores + mask, axis=-1)[:, 0]
    return attention.to_out[0](weights @ (hidden_states @ attention.to_v.weight))


def _attend_to_double(attention: Any, hidden_states: paddle.Tensor, **given: Any) -> paddle.Tensor:
    batch, tokens, _ = hidden_states.shape
    both = paddle.concat([hidden_states, hidden_states * 0.5], axis=1)
    mask = attention.prepare_attention_mask(None, 2 * tokens, batch)
    scores = (attention.to_q(hidden_states) @ attention.to_k(both).transpose([0, 2, 1])).unsqueeze(1)
    weights = paddle.nn.functional.softmax(scores if mask is None else scores + mask, axis=-1)[:, 0]
    return attention.to_out[0](weights @ attention.to_v(both))


@pytest.mark.parametrize("method", KEYS_ONLY)
@pytest.mark.parametrize("ratio", [0.5, 0.75])
@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (_keys_elsewhere, "attention with function, .* does not call to_k, where ToMe .* runs unmerged"),
        (_attend_to_double, r"Linear got tokens of shape .* put other tokens beside them"),
    ],
)
def test_a_processor_whose_keys_are_others_is_told(
    processor: Any, words: str, method: str, ratio: float
) -> None:
    unet = tiny.unet()
    for block in (found.block for found in find_blocks(unet)):
        block.attn1.processor = processor
    plain = tiny.run_unet(unet)
    apply_tome(unet, ratio, method=method)
    with pytest.warns(UserWarning, match=words):
        assert np.array_equal(tiny.run_unet(unet), plain)
    assert not np.array_equal(tiny.run_unet(apply_tome(unet, ratio, sx=4)), plain)  # queries merge all the same


@pytest.mark.parametrize("method", ["tome", *KEYS_ONLY])
def test_tiles_around_attention_are_told(method: str) -> None:
    """As HyperTile puts them there after ToMe: attention runs on each tile, whole."""

    def run_tiles(inside: Any, hidden_states: paddle.Tensor, *args: Any, **given: Any) -> paddle.Tensor:
        batch, tokens, channels = hidden_states.shape
        tiles = hidden_states.reshape([batch * 4, tokens // 4, channels])
        return inside(tiles, *args, **given).reshape([batch, tokens, channels])

    tiled, merging = tiny.small_unet(), tiny.small_unet().apply_tome(0.5, method=method)
    for unet in (tiled, merging):
        for block in (found.block for found in find_blocks(unet)):
            block.attn1.forward = partial(run_tiles, block.attn1.forward)
    with pytest.warns(UserWarning, match=r"so it runs unmerged: .* tiles around attention \(HyperTile\)"):
        assert np.array_equal(tiny.run_unet(merging), tiny.run_unet(tiled))


@pytest.mark.parametrize("method", KEYS_ONLY)
def test_a_text_beside_the_image_has_keys_of_its_own(method: str) -> None:
    """DeepFloyd IF's attention: how many its text has is not known where sizes would be told, also with a mask."""
    model, inputs = ADDED_KV.build(), Inputs()

    @paddle.no_grad()
    def run(**given: Any) -> np.ndarray:
        text = inputs.text(ADDED_TEXT_DIM)
        return model(inputs.image(3), inputs.timestep, encoder_hidden_states=text, **given).sample.numpy()

    plain = run()
    apply_tome(model, 0.5, method=method, max_downsample=8)
    merged = run()
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-5
    all_seen = paddle.ones([inputs.batch, TEXT_TOKENS])
    assert np.abs(run(encoder_attention_mask=all_seen) - merged).max() <= 1e-5


@pytest.mark.parametrize("method", KEYS_ONLY)
def test_a_mask_of_heads(method: str) -> None:
    unet = tiny.unet(levels=1)
    keep = (np.arange(256) % 7 > 0).astype("float32")[None].repeat(2, axis=0)
    expected = tiny.run_unet(apply_tome(unet, 0.5, method=method), attention_mask=paddle.to_tensor(keep))
    by_head = paddle.to_tensor(keep[:, None])
    remove_tome(unet)
    tiny.run_unet(unet, attention_mask=by_head)  # ppdiffusers takes it
    got = tiny.run_unet(apply_tome(unet, 0.5, method=method), attention_mask=by_head)
    assert np.abs(got - expected).max() <= 1e-5
