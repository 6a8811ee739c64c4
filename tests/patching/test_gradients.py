"""Training through merged tokens: gradients are right, also with gradient checkpointing."""

from typing import Any

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute

import tiny
from patching.helpers import count_alive, needs_recompute, refer_to_tensors, watch_blocks
from ppdiffusers_tome import ToMeValueError, apply_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.partition import regular_partition
from ppdiffusers_tome.patching.overrides import denoiser
from ppdiffusers_tome.patching.recompute import is_recomputing
from zoo.dit import SPECIMEN as DIT
from zoo.lvdm import SPECIMEN as LVDM
from zoo.specimen import Inputs, attention_anywhere
from zoo.unet import SPECIMEN as UNET

Gradients = dict[str, np.ndarray]


def gradients(model: paddle.nn.Layer, output: paddle.Tensor) -> Gradients:
    """Of the mean square."""
    model.clear_gradients()
    (output**2).mean().backward()
    return {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


def difference(one: Gradients, other: Gradients) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.fixture(params=[UNET, DIT], ids=["unet", "dit"])
def case(request: pytest.FixtureRequest) -> Any:
    model = request.param.build()
    model.train()
    for layer in model.sublayers():
        if hasattr(layer, "dropout_prob"):  # a DiT drops labels at random in training
            layer.dropout_prob = 0
    return apply_tome(model, **tiny.MERGE_ALL), request.param.run


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
    @pytest.mark.parametrize("settings", [{}, dict(ratio=(0.6, 0.1))], ids=str)
    @pytest.mark.parametrize("between", [dict(height=8, width=32, timestep=20), dict(timestep=20)], ids=str)
    @pytest.mark.parametrize("flag", ["False", "True"], ids=["new", "old"])
    def test_forward_in_between_changes_nothing(
        self, case: Any, settings: dict[str, Any], between: dict[str, int], flag: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """The rerun must see its own image's shape and timestep, not those of the last forward.

        It begins with the last block, and must find the matching that the first one made.
        """
        monkeypatch.setenv("FLAG_USE_OLD_RECOMPUTE", flag)
        model, run = case
        apply_tome(model, **{**tiny.MERGE_ALL, **settings})
        expected = gradients(model, run(model))
        model.enable_gradient_checkpointing()
        output = run(model)
        with paddle.no_grad():
            run(model, **between)
        assert difference(gradients(model, output), expected) <= 1e-6

    @pytest.mark.parametrize("method", ["tome", "keys", "todo"])
    def test_inside_of_the_blocks_of_lvdm(self, method: str) -> None:
        def compute_gradients(checkpointed: bool) -> Gradients:
            model = apply_tome(LVDM.build(), 0.5, max_downsample=8, method=method)
            model.train()
            for layer in model.sublayers():
                if type(layer).__name__ == "BasicTransformerBlockST":
                    layer.checkpoint = checkpointed
                if isinstance(layer, paddle.nn.Dropout):
                    layer.p = 0
            with paddle.set_grad_enabled(True), attention_anywhere():
                inputs = Inputs()
                x = inputs.image(4, inputs.frames)
                x.stop_gradient = False
                return gradients(model, model(x, inputs.timesteps.astype("int64"), context=inputs.text()).sample)

        assert difference(compute_gradients(True), compute_gradients(False)) <= 1e-6

    SETTINGS = ({}, dict(method="todo"))
    NEED_THE_STEP = (dict(reuse_steps=2), dict(end=0.6), dict(ratio=(0.6, 0.2)), dict(cache=0.5))

    @pytest.mark.parametrize("settings", [*SETTINGS, *NEED_THE_STEP], ids=str)
    @pytest.mark.parametrize("piped", [False, True], ids=["bare", "in a pipeline"])
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_of_the_denoiser_itself(self, settings: dict[str, Any], piped: bool, reentrant: bool) -> None:
        """As rewards are trained through a whole denoising; the backward pass knows no steps."""

        class Rewarded(tiny.Sampler):
            def denoise(self, checkpointed: bool) -> paddle.Tensor:
                self.scheduler.set_timesteps(4)
                x = tiny.latent()
                x.stop_gradient = False
                for timestep in self.scheduler.timesteps[:3]:
                    call = lambda x, at=timestep: self.unet(x, at, tiny.text()).sample  # noqa: E731
                    x = x - 0.3 * (recompute(call, x, use_reentrant=reentrant) if checkpointed else call(x))
                return x

            def __call__(self, checkpointed: bool) -> paddle.Tensor:
                return self.denoise(checkpointed)

        def compute_gradients(checkpointed: bool) -> Gradients:
            pipe = Rewarded(apply_tome(tiny.unet(levels=1), **{"ratio": 0.5, **settings}), tiny.scheduler())
            return gradients(pipe.unet, pipe(checkpointed) if piped else pipe.denoise(checkpointed))

        if settings in self.NEED_THE_STEP:
            # Paddle gives an error in a backward pass its own class, around the message.
            with pytest.raises((ToMeValueError, OSError), match="needs the step of each call"):
                compute_gradients(True)
            assert not is_recomputing()
        else:
            assert difference(compute_gradients(True), compute_gradients(False)) <= 1e-6

    def test_without_paddles_state_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As with Paddle 2.6, which hands no state to layers that run again."""
        unet = apply_tome(tiny.unet(), 0.5, max_downsample=2)
        monkeypatch.setattr(denoiser, "HAS_STATE", False)
        unet.enable_gradient_checkpointing()
        with pytest.raises(ToMeValueError, match="checkpointing does not go together with ToMe on Paddle"):
            UNET.run(unet)
        tiny.run_unet(unet)  # without gradients

    def test_a_call_is_remembered_no_longer_than_its_graph(self) -> None:
        unet = apply_tome(tiny.unet(), 0.5, max_downsample=2)
        unet.train()
        unet.enable_gradient_checkpointing()
        with watch_blocks(unet, refer_to_tensors) as references:
            output = UNET.run(unet)
            assert count_alive(references) > 0
            output.mean().backward()
        del output
        assert count_alive(references) == 0

    @pytest.mark.filterwarnings("always:ToMe")
    def test_recompute_without_its_state_is_told(self) -> None:
        unet = apply_tome(tiny.unet(levels=1), 0.5)
        unet.train()
        block = next(layer for layer in unet.sublayers() if type(layer).__name__ == "BasicTransformerBlock")
        own = block.forward
        block.forward = lambda *args, **kwargs: recompute(own, *args, preserve_rng_state=False, **kwargs)
        with pytest.warns(UserWarning, match="ran outside of a call of its denoiser, .*preserve_rng_state=True"):
            gradients(unet, UNET.run(unet))


@pytest.mark.parametrize("direction", ["merge", "unmerge", "both"])
def test_gradients_of_a_matching_equal_finite_differences(direction: str) -> None:
    matching = match_tokens(tiny.array((2, 16, 5)), regular_partition(Grid(4, 4), 2, 2), 9)
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
