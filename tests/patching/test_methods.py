"""Merging methods: what each makes of a group of tokens, and how each sits in a model."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from patching.contract import marks_of, watch_blocks
from ppdiffusers_tome import NothingToMergeError, ToMeConfig, apply_tome, remove_tome
from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.kv_reduction import plan_pooling, select_key_tokens
from ppdiffusers_tome.merging.matchers import match_tokens
from ppdiffusers_tome.merging.methods import KEEP, METHODS, NORM
from ppdiffusers_tome.merging.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.merging.tiles import split_by_tile
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.blocks import find_blocks, find_layer
from ppdiffusers_tome.patching.layer_class import list_overrides
from ppdiffusers_tome.patching.overrides.merge import PointOverride
from zoo import Specimen, specimens
from zoo.added_kv import SPECIMEN as ADDED_KV
from zoo.added_kv import TEXT_DIM as ADDED_TEXT_DIM
from zoo.specimen import TEXT_TOKENS, Inputs
from zoo.unet import SPECIMEN as UNET
from zoo.unet_unconditional import SPECIMEN as UNCONDITIONAL

GRID = Grid(6, 8)
EVERY = sorted(METHODS)
KEYS_ONLY = [name for name in EVERY if METHODS[name].keeps_queries]


class TestMinSimilarity:
    """Fewer merge where fewer are alike, and as many in all images."""

    def tokens(self) -> paddle.Tensor:
        """All destinations point one way; 30 and 10 sources of two images nearly so, the others across."""
        x = np.zeros((2, GRID.num_tokens, 3), np.float32)
        partition = regular_partition(GRID, 2, 2)
        x[:, partition.destinations.numpy()] = [1, 0, 0]
        for image, alike in enumerate((30, 10)):
            x[image, partition.sources.numpy()] = [0, 1, 0]
            x[image, partition.sources.numpy()[:alike]] = [1, 0.1, 0]
        return paddle.to_tensor(x)

    @pytest.mark.parametrize("tile", [None, 4])
    @pytest.mark.parametrize(("least", "at_most", "merged"), [(0.9, 24, 10), (0.9, 6, 6), (-1.0, 24, 24)])
    def test_the_image_with_fewest_decides(self, tile: int | None, least: float, at_most: int, merged: int) -> None:
        x, partition = self.tokens(), regular_partition(GRID, 2, 2)
        if tile is None:
            found = match_tokens(x, partition, at_most, least)
        else:
            tiles = split_by_tile(partition, GRID, tile, (2, 2, 1))
            found = match_tokens(x, partition, at_most, least, tiles)
        assert found is not None
        assert found.num_left == GRID.num_tokens - merged
        assert found.reduce(x).shape == [2, GRID.num_tokens - merged, 3]
        assert len(np.unique(found.owner.numpy())) == 2 * (GRID.num_tokens - merged)

    def test_none_alike_merges_nothing(self) -> None:
        assert match_tokens(self.tokens(), regular_partition(GRID, 2, 2), 24, 0.999) is None

    def test_a_model_runs_unmerged_where_nothing_is_alike(self) -> None:
        unet = tiny.unet()
        plain = tiny.run_unet(unet)
        assert np.array_equal(tiny.run_unet(apply_tome(unet, 0.5, min_similarity=1.0)), plain)
        whole = tiny.run_unet(apply_tome(unet, 0.5))
        assert np.array_equal(tiny.run_unet(apply_tome(unet, 0.5, min_similarity=-1.0)), whole)
        some = tiny.run_unet(apply_tome(unet, 0.7, min_similarity=0.9))
        assert not np.array_equal(some, plain)
        assert not np.array_equal(some, tiny.run_unet(apply_tome(unet, 0.7)))


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


class TestPooledKeys:
    @pytest.mark.parametrize(
        ("layout", "dropped", "stride", "left", "uniform_groups"),
        [
            (Layout(GRID), 36, (2, 2, 1), 12, True), (Layout(GRID), 18, (2, 2, 1), 30, False),
            (Layout(GRID), 1, (2, 2, 1), 45, False), (Layout(Grid(5, 7)), 26, (2, 2, 1), 12, False),
            (Layout(GRID, prefix=3), 36, (2, 2, 1), 15, False), (Layout(Grid(7, 8)), 46, (3, 2, 1), 12, False),
            (Layout(Grid(4, 4, 2)), 12, (2, 2, 1), 8, True), (Layout(Grid(4, 4, 2)), 28, (2, 2, 2), 4, True),
            (Layout(Grid(30, 52)), 1462, (4, 4, 1), 104, True),
            (Layout(Grid(5, 5, 3), prefix=2), 60, (2, 2, 2), 20, False),
        ],
    )  # fmt: skip
    def test_cells_become_their_means_and_the_rest_stays(
        self, layout: Layout, dropped: int, stride: tuple[int, int, int], left: int, uniform_groups: bool
    ) -> None:
        x = tiny.array((2, layout.num_tokens, 5))
        keys = Constants()(plan_pooling(layout, dropped, stride)).repeat(x)
        owner = keys.owner.numpy().reshape(2, -1)
        assert np.array_equal(owner[1], owner[0] + keys.num_left)
        members = [np.flatnonzero(owner[0] == group) for group in range(keys.num_left)]
        assert (keys.num_left, keys.uniform_groups) == (left, uniform_groups)
        assert sorted(np.concatenate(members)) == list(range(layout.num_tokens))
        expected = np.stack([x.numpy()[:, each].mean(axis=1) for each in members], axis=1)
        np.testing.assert_allclose(keys.reduce(x).numpy(), expected, rtol=1e-5, atol=1e-6)
        sizes = [len(each) for each in members]
        np.testing.assert_allclose(keys.log_group_sizes.numpy(), [np.log(sizes)] * 2, rtol=1e-5, atol=1e-6)
        # The text, or whatever stands before the grid, comes last, each token by itself.
        last = members[len(members) - layout.prefix :]
        assert [each.tolist() for each in last] == [[token] for token in range(layout.prefix)]
        positions = keys.positions.numpy()
        assert np.array_equal(positions[0], positions[1])
        for token, each in zip(positions[0], members, strict=True):
            if len(each) == 1:
                assert token == each[0]
                continue
            middle = np.unravel_index(token - layout.prefix, layout.grid.shape)
            for place, numbers in zip(middle, np.unravel_index(each - layout.prefix, layout.grid.shape), strict=True):
                assert place == numbers.min() + (np.ptp(numbers) + 1) // 2
                assert np.ptp(numbers) < max(stride)

    def test_cells_of_one_two_and_four_tokens_are_weighted(self) -> None:
        unet = tiny.unet(levels=1)
        plain = tiny.run_unet(unet, height=5, width=5)
        weighted, equal = (
            np.abs(tiny.run_unet(apply_tome(unet, 0.75, method="pool", proportional=each), height=5, width=5) - plain)
            for each in (None, False)
        )
        assert weighted.mean() < equal.mean()


def test_keys_are_shared_by_blocks() -> None:
    unet = apply_tome(tiny.unet(), 0.5, max_downsample=8, method="keys", reuse_blocks=True)
    called = watch_blocks(unet)
    tiny.run_unet(unet)
    assert len(called) > len({block.layout for block in called}) == len({id(block.reduction) for block in called})


def test_tofu_prunes_early_and_merges_late() -> None:
    unet = apply_tome(tiny.unet(), 0.5, method="tofu", max_downsample=8)
    how = {path: _how(block) for path, block, _ in list_attached_blocks(unet)}
    assert {path.split(".")[0]: way for path, way in how.items()} == {
        "down_blocks": KEEP, "mid_block": KEEP, "up_blocks": NORM
    }  # fmt: skip
    one = apply_tome(tiny.unet().down_blocks[0].attentions[0], 0.5, method="tofu")
    assert [_how(block) for _, block, _ in list_attached_blocks(one)] == [KEEP]


def _how(block: Any) -> str:
    return next(override.combine for override in list_overrides(block.attn1) if isinstance(override, PointOverride))


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
    block = tiny.unet().down_blocks[0].attentions[0]
    flat = paddle.ones([2, 8, 16, 16]) * paddle.linspace(-1, 1, 8).reshape([1, 8, 1, 1])
    with paddle.no_grad():
        plain = block(flat, encoder_hidden_states=tiny.text()).sample.numpy()
        merged = apply_tome(block, 0.7, method=method)(flat, encoder_hidden_states=tiny.text()).sample.numpy()
    np.testing.assert_allclose(merged, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "specimen",
    [pytest.param(each, id=each.name, marks=marks_of(each)) for each in specimens() if each.reason is None],
)
@pytest.mark.parametrize("method", KEYS_ONLY)
def test_fewer_keys_reach_keys_and_values_and_no_queries(specimen: Specimen, method: str) -> None:
    """In every kind of block that has layers for them; elsewhere it is refused in plain words."""
    model = specimen.build()
    ratio: dict[str, Any] = dict(ratio=0.5, max_downsample=8, method=method)
    blocks = [block for block in find_blocks(model) if block.points(ToMeConfig(**ratio))]
    if not blocks:
        with pytest.raises(NothingToMergeError, match=rf"nothing to merge with method='{method}'.*choose another"):
            apply_tome(model, **ratio)
        return
    counts: dict[str, list[int]] = {"to_q": [], "to_k": [], "to_v": []}
    for block in blocks:
        point = block.adapter.points["merge_attn"][0]
        for name in counts:
            find_layer(block.block, point.path(name)).register_forward_post_hook(_counting(counts[name]))
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
@pytest.mark.parametrize(("ratio", "proportional"), [(0.5, None), (0.5, True), (0.75, None)])
@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (_keys_elsewhere, "attention with function does not call to_k, where ToMe reduces keys"),
        (_attend_to_double, r"Linear got tokens of shape .* puts other tokens beside them"),
    ],
)
def test_a_processor_whose_keys_are_others_is_told(
    processor: Any, words: str, method: str, ratio: float, proportional: bool | None
) -> None:
    unet = tiny.unet()
    for block in (found.block for found in find_blocks(unet)):
        block.attn1.processor = processor
    plain = tiny.run_unet(unet)
    apply_tome(unet, ratio, method=method, proportional=proportional)
    with pytest.warns(UserWarning, match=words):
        assert np.array_equal(tiny.run_unet(unet), plain)
    assert not np.array_equal(tiny.run_unet(apply_tome(unet, ratio, sx=4)), plain)  # queries merge all the same


@pytest.mark.parametrize("method", KEYS_ONLY)
@pytest.mark.parametrize("proportional", [None, True, False])
def test_a_text_beside_the_image_has_keys_of_its_own(method: str, proportional: bool | None) -> None:
    """DeepFloyd IF's attention: how many its text has is not known where sizes would be told, also with a mask."""
    model, inputs = ADDED_KV.build(), Inputs()

    @paddle.no_grad()
    def run(**given: Any) -> np.ndarray:
        text = inputs.text(ADDED_TEXT_DIM)
        return model(inputs.image(3), inputs.timestep, encoder_hidden_states=text, **given).sample.numpy()

    plain = run()
    settings: dict[str, Any] = dict(ratio=0.5, method=method, max_downsample=8)
    if proportional:
        with pytest.raises(NothingToMergeError, match="proportional=True has no effect here"):
            apply_tome(model, **settings, proportional=True)
        return
    apply_tome(model, **settings, proportional=proportional)
    merged = run()
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-5
    all_seen = paddle.ones([inputs.batch, TEXT_TOKENS])
    assert np.abs(run(encoder_attention_mask=all_seen) - merged).max() <= 1e-5


@pytest.mark.parametrize("specimen", [UNET, UNCONDITIONAL], ids=["tokens", "image"])
@pytest.mark.parametrize("method", ["keys", "pool"])
def test_sizes_count_unless_settings_say_otherwise(method: str, specimen: Specimen) -> None:
    model = specimen.build()
    outputs = [
        specimen.run(apply_tome(model, 0.5, method=method, max_downsample=8, proportional=given)).numpy()
        for given in (None, True, False)
    ]
    assert np.array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-4


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
