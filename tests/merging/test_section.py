"""The arithmetic of a section: what goes in merged and comes out unmerged, and what it keeps alive meanwhile."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import paddle
import pytest

from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.kv_reduction import ChosenKeys, select_key_tokens
from ppdiffusers_tome.merging.matchers import match_tokens
from ppdiffusers_tome.merging.methods import MEAN
from ppdiffusers_tome.merging.partition import regular_partition
from ppdiffusers_tome.merging.section import Given, on_fewer_keys, on_merged_tokens

GRID = Grid(8, 8)
PARTITION = regular_partition(GRID, 2, 2)


def tokens(number: int = GRID.num_tokens) -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(number).standard_normal((2, number, 6), np.float32))


def test_a_section_merges_what_enters_and_unmerges_what_leaves() -> None:
    x = tokens()
    matching = match_tokens(x, PARTITION, 32)
    section = on_merged_tokens(matching, MEAN)
    next(section)
    merged = section.send(Given(x))
    assert np.array_equal(merged.numpy(), matching.reduce(x).numpy())
    assert np.array_equal(section.send(Given(merged, leaves=True)).numpy(), matching.restore(merged).numpy())


def test_tokens_that_follow_the_blocks_own_stay_as_they_are() -> None:
    x, text = tokens(), tokens(5)
    matching = match_tokens(x, PARTITION, 32)
    section = on_merged_tokens(matching, MEAN)
    next(section)
    given = section.send(Given(paddle.concat([x, text], axis=1)))
    assert np.array_equal(given[:, :32].numpy(), matching.reduce(x).numpy())
    assert np.array_equal(given[:, 32:].numpy(), text.numpy())


@pytest.mark.parametrize("kind", ["merged tokens", "fewer keys"])
def test_what_was_merged_is_not_kept_while_attention_runs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = tokens()
    keys = ChosenKeys(select_key_tokens(PARTITION, 32), 2, 64)
    merging = match_tokens(x, PARTITION, 32) if kind == "merged tokens" else keys
    real, seen = type(merging).reduce, []

    def noting(self: object, own: paddle.Tensor, *how: str) -> paddle.Tensor:
        seen.append(weakref.ref(own))
        return real(self, own, *how)

    monkeypatch.setattr(type(merging), "reduce", noting)
    section = on_merged_tokens(merging, MEAN) if kind == "merged tokens" else on_fewer_keys(merging)
    next(section)
    for _ in range(3):  # to_q, to_k, to_v
        section.send(Given(paddle.concat([tokens(), tokens(5)], axis=1)))
        gc.collect()
        assert seen[-1]() is None


def test_keys_and_values_of_the_same_tokens_are_chosen_once() -> None:
    section = on_fewer_keys(ChosenKeys(select_key_tokens(PARTITION, 32), 2, 64))
    next(section)
    for _ in range(2):  # attention may run twice in a section
        x = tokens()
        of_keys, of_values = section.send(Given(x)), section.send(Given(x))
        assert of_keys is of_values
        assert of_keys.shape == [2, 32, 6]
        kept = [weakref.ref(x), weakref.ref(of_keys)]
        del x, of_keys, of_values
        gc.collect()
        assert [each() for each in kept] == [None, None], "the section keeps tokens alive while attention runs"


def test_keys_and_values_of_other_tokens_are_chosen_for_each() -> None:
    downsampling = ChosenKeys(select_key_tokens(PARTITION, 32), 2, 64)
    section = on_fewer_keys(downsampling)
    next(section)
    for scale in (1, 2, 3):
        x = tokens() * scale
        assert np.array_equal(section.send(Given(x)).numpy(), downsampling.reduce(x).numpy())
