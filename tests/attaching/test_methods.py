"""Merging methods: what each makes of a group of tokens, and how each sits in a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from attaching.contract import groups, marks_of
from ppdiffusers_tome import NothingToMergeError, ToMeConfig, apply_tome, remove_tome
from ppdiffusers_tome.attaching.attach import attached_blocks
from ppdiffusers_tome.attaching.layers import layer_at
from ppdiffusers_tome.attaching.sites import find_sites
from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.merging.grid import Grid, Layout
from ppdiffusers_tome.merging.keys.chosen import ChosenKeys, chosen_tokens
from ppdiffusers_tome.merging.keys.merged import MergedKeys
from ppdiffusers_tome.merging.keys.pooled import pooling
from ppdiffusers_tome.merging.matchers import exact, tiled
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.methods import methods
from ppdiffusers_tome.merging.methods.method import KEEP, MEAN, NORM, WAYS
from ppdiffusers_tome.merging.partition import Partition, random_partition, regular_partition
from ppdiffusers_tome.tools.doctor.zoo import Specimen, specimens

GRID = Grid(6, 8)
EVERY = sorted(methods())
KEYS_ONLY = [name for name in EVERY if methods()[name].keys_only]


def matched(num_merged: int = 20, batch: int = 2, channels: int = 5) -> tuple[paddle.Tensor, Matching]:
    x = tiny.array((batch, GRID.num_tokens, channels))
    found = exact.match(x, random_partition(GRID, 2, 2, seed=3, timestep=None), num_merged)
    assert found is not None
    return x, found


class TestCombining:
    """One token of each group, against numpy."""

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_mean_keep_and_norm(self, dtype: str) -> None:
        x, matching = matched()
        x = x.astype(dtype)
        rows = x.numpy().reshape([-1, 5])
        destinations = set(random_partition(GRID, 2, 2, seed=3, timestep=None).destinations.numpy().tolist())
        results = {how: matching.merge(x, how).numpy().reshape([-1, 5]) for how in WAYS}
        several = 0
        for row, tokens in enumerate(groups(matching)):
            mean = rows[tokens].mean(axis=0)
            length = np.linalg.norm(rows[tokens], axis=1).mean()
            np.testing.assert_allclose(results[MEAN][row], mean, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(results[NORM][row], mean * length / np.linalg.norm(mean), rtol=1e-4, atol=1e-5)
            kept = [token for token in tokens if len(tokens) == 1 or token % GRID.num_tokens in destinations]
            assert len(kept) == 1
            assert np.array_equal(results[KEEP][row], rows[kept[0]])
            several += len(tokens) > 1
        assert several > 5
        assert all(result.dtype == dtype for result in results.values())

    def test_the_order_of_rows_is_the_same_for_all(self) -> None:
        """What was merged one way may be unmerged without knowing which."""
        x, matching = matched()
        constant = paddle.full_like(x, 2.0)
        for how in WAYS:
            np.testing.assert_allclose(matching.unmerge(matching.merge(constant, how)).numpy(), 2.0, rtol=1e-5)

    @pytest.mark.parametrize("how", WAYS)
    def test_gradients_arrive(self, how: str) -> None:
        x, matching = matched()
        x.stop_gradient = False
        matching.merge(x, how).square().sum().backward()
        got = x.grad.numpy()
        assert np.isfinite(got).all()
        dropped = (np.abs(got).reshape([-1, 5]).sum(axis=1) == 0).sum()
        assert dropped == (2 * 20 if how == KEEP else 0)

    def test_a_group_of_opposites_stays_finite(self) -> None:
        x = paddle.to_tensor([[[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]])
        found = exact.match(x, regular_partition(Grid(2, 2), 2, 2), 1)
        assert found is not None
        assert np.isfinite(found.merge(x, NORM).numpy()).all()


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
            found = exact.match(x, partition, at_most, least)
        else:
            found = tiled.match(x, tiled.by_tiles(partition, tiled.tiles_of(GRID, 2, 2, tile)), at_most, least)
        assert found is not None
        assert found.num_merged == merged
        assert found.merge(x).shape == [2, GRID.num_tokens - merged, 3]
        assert len(np.unique(found.owner.numpy())) == 2 * (GRID.num_tokens - merged)

    def test_none_alike_merges_nothing(self) -> None:
        assert exact.match(self.tokens(), regular_partition(GRID, 2, 2), 24, 0.999) is None

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
        chosen = chosen_tokens(partition, dropped).numpy()
        assert len(set(chosen.tolist())) == len(chosen) == GRID.num_tokens - dropped
        assert set(partition.destinations.numpy().tolist()) <= set(chosen.tolist())
        by_cell = np.zeros((3, 4), int)
        for token in chosen:
            by_cell[token // 8 // 2, token % 8 // 2] += 1
        assert by_cell.max() - by_cell.min() <= 1

    def test_a_prefix_stays(self) -> None:
        chosen = chosen_tokens(regular_partition(GRID, 2, 2).after(3), 36).numpy()
        assert {0, 1, 2} <= set(chosen.tolist())
        assert len(chosen) == 3 + 12
        assert chosen.max() < 3 + GRID.num_tokens



class TestPooledKeys:
    """Means of cells, against numpy."""

    @pytest.mark.parametrize(
        ("layout", "dropped", "stride", "cells"),
        [
            (Layout(GRID), 36, (2, 2, 1), 12), (Layout(GRID), 18, (2, 2, 1), 6), (Layout(GRID), 1, (2, 2, 1), 1),
            (Layout(Grid(5, 7)), 18, (2, 2, 1), 6), (Layout(GRID, prefix=3), 36, (2, 2, 1), 12),
            (Layout(Grid(7, 8)), 42, (3, 2, 1), 6), (Layout(Grid(4, 4, 2)), 12, (2, 2, 1), 8),
            (Layout(Grid(4, 4, 2)), 28, (2, 2, 2), 4),
        ],
    )  # fmt: skip
    def test_cells_become_their_means_and_the_rest_stays(
        self, layout: Layout, dropped: int, stride: tuple[int, int, int], cells: int
    ) -> None:
        grid = layout.grid if stride[2] > 1 else layout.grid.of_a_frame
        x = tiny.array((2, layout.num_tokens, 5))
        keys = pooling(layout, grid, dropped, stride)(x, Constants())
        tokens = keys.cells.numpy()
        assert tokens.shape == (cells, np.prod(stride))
        whole = [] if keys.whole is None else keys.whole.tolist()
        assert sorted([*tokens.ravel(), *whole]) == list(range(layout.num_tokens))
        assert set(range(layout.prefix)) <= set(whole)
        rows = x.numpy()
        expected = np.concatenate([rows[:, tokens].mean(axis=2), rows[:, whole]], axis=1)
        np.testing.assert_allclose(keys.keys_of(x).numpy(), expected, rtol=1e-5, atol=1e-6)
        assert keys.keys_of(x).shape[1] == keys.num_left == layout.num_tokens - tokens.size + cells
        sizes = [tokens.shape[1]] * cells + [1] * len(whole)
        np.testing.assert_allclose(keys.log_sizes.numpy(), [np.log(sizes)], rtol=1e-6)
        assert keys.is_even == (not whole)
        # A cell is that of neighbours, and stands in its middle.
        of_frame = (tokens - layout.prefix) % layout.grid.of_a_frame.num_tokens
        row, column = np.divmod(of_frame, layout.grid.width)
        assert (np.ptp(row, axis=1) == stride[1] - 1).all()
        assert (np.ptp(column, axis=1) == stride[0] - 1).all()
        positions = keys.positions.numpy()[0]
        assert positions[cells:].tolist() == whole
        assert all(token in cell for token, cell in zip(positions, tokens, strict=False))

    def test_the_middle_of_an_odd_cell(self) -> None:
        keys = pooling(Layout(Grid(3, 3)), Grid(3, 3), 8, (3, 3, 1))(tiny.array((1, 9, 2)), Constants())
        assert keys.positions.tolist() == [[4]]

    def test_pooled_cells_are_spread_evenly(self) -> None:
        chosen = pooling(Layout(GRID), GRID, 18, (2, 2, 1)).cells[:, 0]
        assert np.array_equal(np.divmod(chosen // 2, 4)[0] // 2, [0, 0, 1, 1, 2, 2])


class TestFewerKeysInAttention:
    """Softmax over fewer keys; every query gets its own answer."""

    @pytest.mark.parametrize("method", KEYS_ONLY)
    @pytest.mark.parametrize("ratio", [0.75, 0.5])
    def test_against_numpy(self, method: str, ratio: float) -> None:
        unet = apply_tome(tiny.unet(), ratio, method=method, use_rand=method == "pool")
        ((_, block, hooks), *_) = attached_blocks(unet)
        attention, seen = block.attn1, {}
        hooks.attachment.watch = lambda called: seen.setdefault("keys", called.matching)
        block.norm1.register_forward_post_hook(lambda layer, inputs, output: seen.update(x=output.numpy()))
        attention.to_out[0].register_forward_pre_hook(lambda layer, inputs: seen.update(out=inputs[0].numpy()))
        tiny.run_unet(unet)
        x, heads, keys = seen["x"], attention.heads, seen["keys"]
        assert abs(keys.num_left - 256 * (1 - ratio)) <= (1 if method == "pool" else 0)
        fewer = keys.keys_of(paddle.to_tensor(x)).numpy()
        sizes = np.ones(keys.num_left) if method == "todo" else np.exp(keys.log_sizes.numpy())

        def split(layer: Any, rows: np.ndarray) -> np.ndarray:
            made = rows @ layer.weight.numpy()
            return made.reshape([*made.shape[:2], heads, -1]).transpose(0, 2, 1, 3)

        query = split(attention.to_q, x)
        key, value = (split(layer, fewer) for layer in (attention.to_k, attention.to_v))
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * sizes.reshape(-1, 1, 1, keys.num_left)
        expected = (weights / weights.sum(axis=-1, keepdims=True)) @ value
        expected = expected.transpose(0, 2, 1, 3).reshape(seen["out"].shape)
        np.testing.assert_allclose(seen["out"], expected, rtol=1e-4, atol=1e-5)

    def test_todo_takes_the_destinations(self) -> None:
        unet, seen = apply_tome(tiny.unet(), 0.75, method="todo", use_rand=False), []
        attached_blocks(unet)[0][2].attachment.watch = lambda called: seen.append(called.matching)
        tiny.run_unet(unet)
        assert np.array_equal(seen[0].kept.numpy(), regular_partition(Grid(16, 16), 2, 2).destinations.numpy())

    @pytest.mark.parametrize("method", ["keys", "pool"])
    def test_sizes_count_unless_settings_say_otherwise(self, method: str) -> None:
        unet = tiny.unet()
        outputs = [
            tiny.run_unet(apply_tome(unet, 0.5, method=method, proportional=given)) for given in (None, True, False)
        ]
        assert np.array_equal(outputs[0], outputs[1])
        assert np.abs(outputs[0] - outputs[2]).max() > 1e-4

    def test_keys_are_shared_by_blocks_and_steps(self) -> None:
        settings = dict(ratio=0.5, max_downsample=8, method="keys")
        unet = tiny.unet()
        alone = tiny.run_unet(apply_tome(unet, **settings))
        shared, seen = apply_tome(unet, **settings, reuse_blocks=True), []
        attached_blocks(shared)[0][2].attachment.watch = lambda called: seen.append((called.layout, called.matching))
        assert np.abs(tiny.run_unet(shared) - alone).max() > 1e-5
        assert len(seen) > len({layout for layout, _ in seen}) == len({id(keys) for _, keys in seen})


def test_methods_are_the_files_of_their_folder() -> None:
    assert EVERY == ["keys", "pool", "prune", "todo", "tofu", "tome"]
    assert all((method.combine is None) == method.keys_only for method in methods().values())
    assert all(method.about and "\n" not in method.about for method in methods().values())


def test_tofu_prunes_early_and_merges_late() -> None:
    unet = apply_tome(tiny.unet(), 0.5, method="tofu", max_downsample=8)
    how = {path: _how(block) for path, block, _ in attached_blocks(unet)}
    assert {path.split(".")[0]: way for path, way in how.items()} == {
        "down_blocks": KEEP, "mid_block": KEEP, "up_blocks": NORM
    }  # fmt: skip
    one = apply_tome(tiny.unet().down_blocks[0].attentions[0], 0.5, method="tofu")
    assert [_how(block) for _, block, _ in attached_blocks(one)] == [KEEP]


def _how(block: Any) -> str:
    hooks = [hook for hook in block.attn1._forward_pre_hooks.values() if hasattr(hook.__self__, "how")]
    return hooks[0].__self__.how


@pytest.mark.parametrize("method", EVERY)
class TestInAModel:
    def test_it_changes_the_output_and_comes_off(self, method: str) -> None:
        unet = tiny.unet()
        plain = tiny.run_unet(unet)
        merged = tiny.run_unet(apply_tome(unet, 0.5, method=method, max_downsample=8))
        assert np.isfinite(merged).all()
        assert np.abs(merged - plain).max() > 1e-4
        assert np.array_equal(tiny.run_unet(apply_tome(unet, 0.5, method=method, max_downsample=8)), merged)
        others = [other for other in EVERY if other != method]
        assert not any(
            np.array_equal(tiny.run_unet(apply_tome(unet, 0.5, method=other, max_downsample=8)), merged)
            for other in others
        )
        assert np.array_equal(tiny.run_unet(remove_tome(unet)), plain)

    def test_ratio_zero_is_the_identity(self, method: str) -> None:
        unet = tiny.unet()
        plain = tiny.run_unet(unet)
        assert np.array_equal(tiny.run_unet(apply_tome(unet, 0, method=method)), plain)

    def test_tokens_that_are_equal_lose_nothing(self, method: str) -> None:
        """A picture of one colour has one token many times: whatever stands for many is as good as all."""
        unet = tiny.unet()
        block = unet.down_blocks[0].attentions[0]
        flat = paddle.ones([2, 8, 16, 16]) * paddle.linspace(-1, 1, 8).reshape([1, 8, 1, 1])
        text = tiny.text()
        with paddle.no_grad():
            plain = block(flat, encoder_hidden_states=text).sample.numpy()
            apply_tome(block, 0.7, method=method)
            merged = block(flat, encoder_hidden_states=text).sample.numpy()
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
    sites = [site for site in find_sites(model) if site.sections(ToMeConfig(**ratio))]
    if not sites:
        with pytest.raises(NothingToMergeError, match=rf"nothing to merge with method='{method}'.*choose another"):
            apply_tome(model, **ratio)
        return
    counts: dict[str, list[int]] = {"to_q": [], "to_k": [], "to_v": []}
    for site in sites:
        for path in site.adapter.sections["merge_attn"][0].keys:
            owner, _, name = path.rpartition(".")
            layer_at(site.block, path).register_forward_post_hook(_counting(counts[name]))
            if name == "to_k":
                layer_at(site.block, f"{owner}.to_q".lstrip(".")).register_forward_post_hook(_counting(counts["to_q"]))
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


def test_a_processor_that_makes_keys_elsewhere_is_told() -> None:
    def processor(attention: Any, hidden_states: paddle.Tensor, **given: Any) -> paddle.Tensor:
        return attention.to_out[0](hidden_states @ attention.to_v.weight)

    unet = tiny.unet()
    for block in (site.block for site in find_sites(unet)):
        block.attn1.processor = processor
    plain = tiny.run_unet(unet)
    apply_tome(unet, 0.5, method="todo")
    with pytest.warns(UserWarning, match=r"BasicTransformerBlock did not call the layers at which its tokens merge"):
        assert np.array_equal(tiny.run_unet(unet), plain)
    assert not np.array_equal(tiny.run_unet(apply_tome(unet, 0.5)), plain)


@pytest.mark.parametrize("queries", [1, GRID.num_tokens])
@pytest.mark.parametrize("kind", KEYS_ONLY)
def test_masks_of_fewer_keys(kind: str, queries: int) -> None:
    """A key is left out as soon as one token that it stands for is; queries stay."""
    x, matching = matched()
    keys, members = {
        "todo": lambda: _chosen(),
        "pool": lambda: _pooled(x),
        "keys": lambda: (MergedKeys.of(matching), [group % GRID.num_tokens for group in groups(matching)]),
    }[kind]()
    mask = np.zeros((2 * 3, queries, GRID.num_tokens), np.float32)
    mask[:, :, ::7] = -10000
    mask[0, -1, :] = -10000
    merged = keys.merge_mask(paddle.to_tensor(mask)).numpy()
    left = len(members) // (2 if kind == "keys" else 1)
    assert merged.shape == (6, queries, left)
    for image_head in range(6):
        of_image = members[image_head // 3 * left :][:left] if kind == "keys" else members
        expected = np.stack([mask[image_head][:, tokens].min(axis=-1) for tokens in of_image], axis=-1)
        assert np.array_equal(merged[image_head], expected)


def _chosen() -> Any:
    chosen = chosen_tokens(regular_partition(GRID, 2, 2), 36)
    return ChosenKeys(chosen, 2, GRID.num_tokens), [[token] for token in chosen.tolist()]


def _pooled(x: paddle.Tensor) -> Any:
    keys = pooling(Layout(GRID), GRID, 18, (2, 2, 1))(x, Constants())
    return keys, [*keys.cells.tolist(), *([token] for token in keys.whole.tolist())]
