"""A call of a denoiser, from its start to its end: what belongs to it, and that nothing of it outlives it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute
from ppdiffusers.pipelines.stable_diffusion.pipeline_stable_diffusion_sag import CrossAttnStoreProcessor

import tiny
from patching.contract import StumbledError, Tensors, failing_in, needs_recompute, watch_blocks
from ppdiffusers_tome import ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.merging.chosen_keys import select_key_tokens
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matchers import match_tokens
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.merging.partition import regular_partition
from ppdiffusers_tome.patching.blocks import find_blocks, find_layer
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.patching.overrides import denoiser
from zoo.lvdm import SPECIMEN as LVDM
from zoo.specimen import Inputs, attention_anywhere


def parts(unet: tiny.Model) -> dict[str, Callable[[], paddle.Tensor]]:
    down = unet.down_blocks[0]
    parent = down.attentions[0]
    block = parent.transformer_blocks[0]
    text, image, tokens = tiny.text(), tiny.array((2, 8, 16, 16), seed=1), tiny.array((2, 256, 8), seed=2)
    temb = tiny.array((2, 32), seed=3)
    return {
        "block": lambda: block(tokens, encoder_hidden_states=text),
        "attention": lambda: block.attn1(tokens),
        "parent": lambda: parent(image, encoder_hidden_states=text).sample,
        "down": lambda: down(image, temb, encoder_hidden_states=text)[0],
    }


@pytest.mark.parametrize("name", ["block", "attention", "parent", "down"])
@pytest.mark.parametrize("kind", [StumbledError, KeyboardInterrupt])
@pytest.mark.parametrize("settings", [{}, dict(reuse_steps=3)], ids=str)
def test_a_part_knows_nothing_of_failed_calls(name: str, kind: type[BaseException], settings: dict[str, Any]) -> None:
    unet = apply_tome(tiny.unet(), **tiny.MERGE_ALL, **settings)
    failing = unet.down_blocks[0].attentions[0].transformer_blocks[0].attn2
    with paddle.no_grad():
        expected = parts(unet)[name]().numpy()
        for call in (lambda: tiny.run_unet(unet, timestep=20), parts(unet)["parent"]):
            with failing_in(failing, kind), pytest.raises(kind):
                call()
            assert np.array_equal(parts(unet)[name]().numpy(), expected)


def test_a_warning_names_the_line_of_the_user() -> None:
    unet = apply_tome(tiny.unet(), 0.5, sx=32, sy=32)
    with pytest.warns(UserWarning, match="smaller than one cell") as caught, paddle.no_grad():
        unet(tiny.latent(), 500, tiny.text())
    (warning,) = [each for each in caught if "ToMe" in str(each.message)]
    assert warning.filename == __file__
    pipe = tiny.pipeline().apply_tome(0, cache=0.5)
    with pytest.warns(UserWarning, match="ToMe") as caught:  # not of ppdiffusers, which calls the denoiser
        tiny.run_pipeline(pipe, steps=3)
    assert {each.filename for each in caught if "ToMe" in str(each.message)} == {tiny.__file__}


@pytest.mark.parametrize("forward", [False, True], ids=["called", "forward"])
def test_the_model_s_own_forward_may_be_called_without_hooks(forward: bool) -> None:
    """As some code does; every call has its own timestep."""
    unet, other = apply_tome(tiny.unet(), **tiny.MERGE_ALL), apply_tome(tiny.unet(), **tiny.MERGE_ALL)
    with paddle.no_grad():
        for timestep in (900, 20, 900):
            output = (unet.forward if forward else unet)(tiny.latent(), timestep, tiny.text()).sample
            assert np.array_equal(output.numpy(), tiny.run_unet(other, timestep=timestep))


@pytest.mark.parametrize("failure", [None, StumbledError, KeyboardInterrupt])
@pytest.mark.parametrize("settings", [{}, dict(reuse_steps=3), dict(method="todo")], ids=str)
def test_a_pipeline_that_ended_keeps_no_tensor(settings: dict[str, Any], failure: type[BaseException] | None) -> None:
    pipe = tiny.pipeline().apply_tome(0.5, **settings)
    tensors = Tensors(pipe.unet)
    with contextlib.ExitStack() as stack:
        if failure is not None:
            stack.enter_context(contextlib.suppress(failure))
            stack.enter_context(failing_in(pipe.unet.mid_block, failure))
        tiny.run_pipeline(pipe, steps=3)
    assert tensors.seen
    # What is chosen by ``todo`` with fixed destinations is a constant.
    assert tensors.alive() == 0


class Checkpointed(paddle.nn.Layer):
    """A layer of a model as a user checkpoints it: called once more in the backward pass."""

    def __init__(self, inner: tiny.Model, reentrant: bool) -> None:
        super().__init__()
        self.inner, self._reentrant = inner, reentrant

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *given: Any, **keywords: Any) -> Any:
        return recompute(self.inner, *given, use_reentrant=self._reentrant, **keywords)


@needs_recompute
class TestRecomputation:
    """A backward pass runs layers again, after other calls, outside their denoiser."""

    @staticmethod
    def gradients(unet: tiny.Model, called: tiny.Model, forwards: int = 2) -> list[np.ndarray]:
        """Of all weights; all forwards run before the first backward."""
        unet.clear_gradients()
        given = [(tiny.latent(), 900, tiny.text()), (tiny.latent(2, 8, 32), 20, tiny.text())][:forwards]
        outputs = [called(*each, return_dict=False)[0] for each in given]
        for output in outputs:
            (output**2).mean().backward()
        return [parameter.grad.numpy() for parameter in unet.parameters() if parameter.grad is not None]

    @staticmethod
    def difference(one: list[np.ndarray], other: list[np.ndarray]) -> float:
        return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))

    PLACES = (
        ("", False), ("mid_block", True), ("down_blocks.0", False), ("down_blocks.0.attentions.0", True),
        ("down_blocks.0.attentions.0.transformer_blocks.0", False),
    )  # fmt: skip

    @pytest.mark.parametrize("settings", [{}, dict(method="todo")], ids=str)
    @pytest.mark.parametrize(("path", "reentrant"), PLACES, ids=str)
    def test_of_any_layer_around_a_block(self, path: str, reentrant: bool, settings: dict[str, Any]) -> None:
        unet = apply_tome(tiny.unet(), 0.5, max_downsample=2, **settings)
        unet.train()
        expected = self.gradients(unet, unet)
        called: tiny.Model = Checkpointed(unet, reentrant)
        if path:
            parent, _, name = path.rpartition(".")
            layers = dict(unet.named_sublayers(include_self=True))
            setattr(layers[parent], name, Checkpointed(layers[path], reentrant))
            called = unet
        assert self.difference(self.gradients(unet, called), expected) <= 1e-6

    @pytest.mark.parametrize("method", ["tome", "keys", "todo"])
    @pytest.mark.parametrize("path", ["attn1", "attn1.to_k", "ff"])
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_of_a_layer_inside_of_a_block(self, path: str, method: str, reentrant: bool) -> None:
        """As LVDM's blocks do by default, of all that they compute."""

        def gradients(checkpointed: bool) -> list[np.ndarray]:
            unet = tiny.unet(levels=1)
            unet.train()
            apply_tome(unet, 0.5, method=method, merge_mlp=method == "tome")
            for block in find_blocks(unet) if checkpointed else ():
                layer, parent = find_layer(block.block, path), find_layer(block.block, path.rpartition(".")[0])
                setattr(parent, path.rpartition(".")[2], Checkpointed(layer, reentrant))
            return self.gradients(unet, unet)

        assert self.difference(gradients(True), gradients(False)) <= 1e-6

    @pytest.mark.parametrize("method", ["tome", "todo"])
    def test_inside_of_the_blocks_of_lvdm(self, method: str) -> None:
        def gradients(checkpointed: bool) -> list[np.ndarray]:
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
                output = model(x, inputs.timesteps.astype("int64"), context=inputs.text()).sample
                (output**2).mean().backward()
            return [each.grad.numpy() for each in model.parameters() if each.grad is not None]

        assert self.difference(gradients(True), gradients(False)) <= 1e-6

    def test_of_parents_as_ppdiffusers_old_recompute_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unet = apply_tome(tiny.unet(), 0.5, max_downsample=2)
        unet.train()
        expected = self.gradients(unet, unet)
        monkeypatch.setenv("FLAG_USE_OLD_RECOMPUTE", "True")
        unet.enable_gradient_checkpointing()
        assert self.difference(self.gradients(unet, unet), expected) <= 1e-6

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

        def gradients(checkpointed: bool) -> list[np.ndarray]:
            unet = apply_tome(tiny.unet(levels=1), **{"ratio": 0.5, **settings})
            pipe = Rewarded(unet, tiny.scheduler())
            result = pipe(checkpointed) if piped else pipe.denoise(checkpointed)
            (result**2).mean().backward()
            return [parameter.grad.numpy() for parameter in unet.parameters() if parameter.grad is not None]

        if settings in self.NEED_THE_STEP:
            # Paddle gives an error in a backward pass its own class, around the message.
            with pytest.raises((ToMeValueError, OSError), match="needs the step of each call"):
                gradients(True)
            assert not CALL_STACK.is_recomputing
        else:
            assert self.difference(gradients(True), gradients(False)) <= 1e-6

    def test_without_paddles_state_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As with Paddle 2.6, which hands no state to layers that run again."""
        unet = apply_tome(tiny.unet(), 0.5, max_downsample=2)
        monkeypatch.setattr(denoiser, "HAS_STATE", False)
        unet.enable_gradient_checkpointing()
        with pytest.raises(ToMeValueError, match="checkpointing does not go together with ToMe on Paddle"):
            unet(tiny.latent(), 500, tiny.text())
        tiny.run_unet(unet)  # without gradients

    def test_a_call_is_remembered_no_longer_than_its_graph(self) -> None:
        unet = apply_tome(tiny.unet(), 0.5, max_downsample=2)
        unet.train()
        unet.enable_gradient_checkpointing()
        tensors = Tensors(unet)
        output = unet(tiny.latent(), 500, tiny.text()).sample
        assert tensors.alive() > 0
        output.mean().backward()
        del output
        assert tensors.alive() == 0


def test_threads_that_ask_for_gradients_and_threads_that_do_not_disturb_no_one() -> None:
    """Matching records none; Paddle's decorator for that would put back what another thread had."""
    x, partition = tiny.array((1, 256, 8)), regular_partition(Grid(16, 16), 2, 2)

    def ask(wanted: bool) -> bool:
        with paddle.set_grad_enabled(wanted):
            return all(match_tokens(x, partition, 64) and paddle.is_grad_enabled() == wanted for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, [True, False] * 4))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_users_own_mask_preparation_is_called_while_tome_is_applied_and_there_afterwards(method: str) -> None:
    unet, calls, given = tiny.unet(levels=1), [], dict(attention_mask=tiny.keep_mask())
    attention = unet.down_blocks[0].attentions[0].transformer_blocks[0].attn1

    def prepare(mask: Any, target_length: int, *args: Any, **kwargs: Any) -> Any:
        calls.append(target_length)
        return type(attention).prepare_attention_mask(attention, mask, target_length, *args, **kwargs)

    attention.prepare_attention_mask = prepare
    plain = tiny.run_unet(unet, **given)
    before = tiny.snapshot(unet)
    calls.clear()
    tiny.run_unet(apply_tome(unet, 0.5, method=method), **given)
    tiny.run_unet(apply_tome(unet, 0.25, method=method), **given)
    assert calls == [128, 192]
    twin = copy.deepcopy(unet)
    assert np.array_equal(tiny.run_unet(remove_tome(twin), **given), plain)
    assert tiny.snapshot(remove_tome(unet)) == before
    assert np.array_equal(tiny.run_unet(unet, **given), plain)


class TestMasks:
    @pytest.mark.parametrize("settings", [*(dict(method=name) for name in sorted(METHODS)), dict(tile=4)], ids=str)
    def test_what_is_masked_reaches_no_other_token(self, settings: dict[str, Any]) -> None:
        """Told by the tokens themselves: those that are masked may be anything."""
        unet = apply_tome(tiny.unet(levels=1), 0.5, use_rand=False, **settings)
        block, keep = unet.down_blocks[0].attentions[0].transformer_blocks[0], tiny.keep_mask().numpy()
        # Before ToMe merges, so that matchings are the same and the values alone differ.
        noise = np.zeros((2, 256, 8), "float32")
        seen: list[np.ndarray] = []
        called = watch_blocks(unet)
        block.norm1.register_forward_post_hook(lambda layer, inputs, output: output + paddle.to_tensor(noise))
        attention = block.attn1
        attention.register_forward_post_hook(lambda layer, inputs, output: seen.append(output.numpy()))
        given = dict(attention_mask=paddle.to_tensor(keep))
        tiny.run_unet(unet, **given)
        noise[keep == 0] = 7
        tiny.run_unet(unet, **given)
        masked, reduction = keep == 0, called[0].reduction
        if not reduction.keeps_queries:  # a group with a masked token is masked, and so is what comes of it
            owner = reduction.owner.numpy()
            masked = np.isin(owner, owner[masked.ravel()]).reshape(keep.shape)
        clean = ~masked
        assert clean.sum() > 50
        assert np.abs(seen[0] - seen[1])[clean].max() <= 1e-5
        assert np.isfinite(seen[1]).all()

    def test_todo_with_a_mask_equals_the_plain_model_with_those_keys_masked(self) -> None:
        unet, keep = tiny.unet(levels=1), tiny.keep_mask().numpy()
        chosen = select_key_tokens(regular_partition(Grid(16, 16), 2, 2), 192).numpy()
        both = np.zeros_like(keep)
        both[:, chosen] = keep[:, chosen]
        expected = tiny.run_unet(unet, attention_mask=paddle.to_tensor(both))
        settings = dict(method="todo", use_rand=False)
        merged = tiny.run_unet(apply_tome(unet, 0.75, **settings), attention_mask=paddle.to_tensor(keep))
        assert np.abs(merged - expected).max() <= 1e-5


def test_processors_that_keep_maps_are_known_by_inheritance() -> None:
    class KeepingStore(CrossAttnStoreProcessor):
        pass

    unet = tiny.unet()
    attention = unet.mid_block.attentions[0].transformer_blocks[0].attn1
    attention.processor = KeepingStore()
    apply_tome(unet, **tiny.MERGE_ALL)
    with pytest.warns(UserWarning, match="KeepingStore keeps attention maps of all tokens"):
        tiny.run_unet(unet)
    assert attention.processor.attention_probs.shape[-2:] == [64, 64]


def test_a_program_for_one_batch_shares_its_matchings_as_the_model_does() -> None:
    unet = apply_tome(tiny.small_unet(), 0.5, reuse_steps=3)
    given = tiny.latent(1), paddle.to_tensor([500]), tiny.text(1)
    program = paddle.jit.to_static(tiny.Positional(unet), full_graph=True)
    with paddle.no_grad():
        assert np.abs(program(*given).numpy() - tiny.run_unet(unet, 1)).max() <= 1e-5
