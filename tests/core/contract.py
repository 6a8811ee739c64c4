"""What holds for every model that ToMe is applied to. Inherit it and say how to build and to call the model."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import paddle
import pytest

import tiny
from ppdiffusers_tome import apply_tome, remove_tome


class ToMeContract:
    """Subclasses give ``build`` and ``run``; ``model`` is fresh and ``plain`` its output before anything was done."""

    build: ClassVar[Any]
    run: ClassVar[Any]

    @pytest.fixture
    def model(self) -> tiny.Model:
        return type(self).build()

    @pytest.fixture
    def plain(self, model: tiny.Model) -> np.ndarray:
        return type(self).run(model)

    def output(self, model: tiny.Model, **given: Any) -> np.ndarray:
        return type(self).run(model, **given)

    def test_merging_changes_the_output(self, model: tiny.Model, plain: np.ndarray) -> None:
        """Without this the rest would prove nothing."""
        merged = self.output(apply_tome(model, 0.5))
        assert np.isfinite(merged).all()
        assert np.abs(merged - plain).max() > 1e-3

    def test_ratio_zero_is_the_identity(self, model: tiny.Model, plain: np.ndarray) -> None:
        apply_tome(model, 0, merge_crossattn=True, merge_mlp=True)
        assert np.array_equal(self.output(model), plain)

    def test_apply_twice_equals_applying_the_second(self, model: tiny.Model) -> None:
        expected = self.output(apply_tome(type(self).build(), 0.3, sx=4))
        apply_tome(model, 0.6, merge_mlp=True, seed=7)
        apply_tome(model, 0.3, sx=4)
        assert np.array_equal(self.output(model), expected)

    def test_remove_restores_output_exactly(self, model: tiny.Model, plain: np.ndarray) -> None:
        self.output(apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True))
        assert np.array_equal(self.output(remove_tome(model)), plain)

    def test_remove_leaves_nothing(self, model: tiny.Model) -> None:
        self.output(model)
        before = tiny.snapshot(model)
        self.output(apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True))
        assert tiny.snapshot(model) != before
        assert tiny.snapshot(remove_tome(model)) == before

    def test_state_dict_keys_stay(self, model: tiny.Model) -> None:
        before = list(model.state_dict())
        assert list(apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True).state_dict()) == before

    def test_global_random_states_stay(self, model: tiny.Model) -> None:
        self.output(model)  # whatever a first call sets up
        paddle.seed(11)
        np.random.seed(11)
        expected = paddle.randn([3]).tolist(), np.random.rand(3).tolist()
        paddle.seed(11)
        np.random.seed(11)
        before = tiny.random_states()
        self.output(apply_tome(model, 0.5, seed=3))
        remove_tome(model)
        assert tiny.random_states() == before
        assert (paddle.randn([3]).tolist(), np.random.rand(3).tolist()) == expected

    def test_same_seed_gives_the_same_output_at_every_call(self, model: tiny.Model) -> None:
        apply_tome(model, 0.5, seed=5)
        first = self.output(model)
        self.output(model, timestep=3)
        self.output(model, height=8, width=32, timestep=9)
        assert np.array_equal(self.output(model), first)

    def test_other_seed_gives_another_output(self, model: tiny.Model) -> None:
        first = self.output(apply_tome(model, 0.5, seed=5))
        assert np.abs(self.output(apply_tome(model, 0.5, seed=6)) - first).max() > 1e-4

    def test_other_shape_of_the_same_token_count_is_told_apart(self, model: tiny.Model) -> None:
        """8x32 after 16x16, and the other way round, equal what a fresh model gives."""
        expected = self.output(apply_tome(type(self).build(), 0.5), height=8, width=32)
        apply_tome(model, 0.5)
        square = self.output(model)
        assert np.array_equal(self.output(model, height=8, width=32), expected)
        assert np.array_equal(self.output(model), square)

    def test_train_and_eval_modes_stay(self, model: tiny.Model) -> None:
        model.train()
        apply_tome(model, 0.5)
        assert all(layer.training for layer in model.sublayers(include_self=True))
