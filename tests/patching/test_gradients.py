"""Training through merged tokens: gradients are right, also with gradient checkpointing."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute

import tiny
from patching.contract import needs_recompute
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matchers import match_tokens
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import regular_partition

Gradients = dict[str, np.ndarray]


def run_unet(unet: tiny.Model, height: int = 16, width: int = 16, timestep: int = 500) -> paddle.Tensor:
    return unet(tiny.latent(2, height, width), timestep, tiny.text()).sample


def run_dit(dit: tiny.Model, height: int = 16, width: int = 16, timestep: int = 500) -> paddle.Tensor:
    steps, labels = paddle.full([2], timestep, dtype="float32"), paddle.arange(2, dtype="int64")
    return dit(tiny.latent(2, height, width), timestep=steps, class_labels=labels).sample


def gradients(model: tiny.Model, *outputs: paddle.Tensor) -> Gradients:
    """Of the mean squares; several outputs go backward one after the other, in the order given."""
    model.clear_gradients()
    for output in outputs:
        (output**2).mean().backward()
    return {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


def difference(one: Gradients, other: Gradients) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.fixture(params=[(tiny.unet, run_unet), (tiny.dit, run_dit)], ids=["unet", "dit"])
def case(request: pytest.FixtureRequest) -> Any:
    build, run = request.param
    model = build()
    model.train()
    for layer in model.sublayers():
        if hasattr(layer, "dropout_prob"):  # a DiT drops labels at random in training
            layer.dropout_prob = 0
    return apply_tome(model, **tiny.MERGE_ALL), run


def test_gradients_are_finite_and_reach_every_parameter(case: Any) -> None:
    model, run = case
    found = gradients(model, run(model))
    reached = {name for name, p in model.named_parameters() if not p.stop_gradient}
    unused = {name for name in reached if "norm1.emb" in name and "blocks.0" not in name}
    assert set(found) >= reached - unused
    assert all(np.isfinite(gradient).all() for gradient in found.values())
    assert sum(float(np.abs(gradient).max()) > 0 for gradient in found.values()) > len(found) // 2


@needs_recompute
class TestCheckpointing:
    @pytest.mark.parametrize("settings", [{}, dict(reuse_steps=3), dict(ratio=(0.6, 0.1))], ids=str)
    @pytest.mark.parametrize("between", [(8, 32, 500), (16, 16, 20), (32, 32, 3)], ids=str)
    def test_forward_in_between_changes_nothing(
        self, case: Any, settings: dict[str, Any], between: tuple[int, int, int]
    ) -> None:
        """The rerun must see its own image's shape and timestep, not those of the last forward.

        It begins with the last block, and must find the matching that the first one made.
        """
        model, run = case
        apply_tome(model, **{**tiny.MERGE_ALL, **settings})
        expected = gradients(model, run(model))
        model.enable_gradient_checkpointing()
        output = run(model)
        with paddle.no_grad():
            run(model, *between)
        assert difference(gradients(model, output), expected) <= 1e-6

    @pytest.mark.filterwarnings("always:ToMe")
    def test_recompute_without_its_state_is_told(self) -> None:
        unet = apply_tome(tiny.unet(levels=1), 0.5)
        unet.train()
        block = next(layer for layer in unet.sublayers() if type(layer).__name__ == "BasicTransformerBlock")
        own = block.forward
        block.forward = lambda *args, **kwargs: recompute(own, *args, preserve_rng_state=False, **kwargs)
        with pytest.warns(UserWarning, match="ran outside of a call of its denoiser, .*preserve_rng_state=True"):
            gradients(unet, run_unet(unet))


class TestMatching:
    @pytest.fixture
    def matching(self) -> Matching:
        return match_tokens(tiny.array((2, 16, 5)), regular_partition(Grid(4, 4), 2, 2), 9)

    @pytest.mark.parametrize("direction", ["merge", "unmerge", "both"])
    def test_gradient_equals_finite_differences(self, matching: Matching, direction: str) -> None:
        tokens = matching.num_left if direction == "unmerge" else matching.num_tokens
        x = np.random.default_rng(1).standard_normal((2, tokens, 3))

        def loss(array: np.ndarray) -> tuple[paddle.Tensor, paddle.Tensor]:
            x = paddle.to_tensor(array, dtype="float64", stop_gradient=False)
            y = x if direction == "unmerge" else paddle.tanh(matching.reduce(x))
            y = y if direction == "merge" else matching.restore(y)
            weights = paddle.to_tensor(np.random.default_rng(2).standard_normal(y.shape))
            return (weights * y * y).sum(), x

        value, leaf = loss(x)
        value.backward()
        for index in np.ndindex(*x.shape):
            step = np.zeros_like(x)
            step[index] = 1e-5
            slope = (float(loss(x + step)[0]) - float(loss(x - step)[0])) / 2e-5
            # The mean's divisor, one over the count, is float32.
            assert slope == pytest.approx(float(leaf.grad.numpy()[index]), abs=1e-6)
