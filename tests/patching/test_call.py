"""A call of a denoiser, from its start to its end: what belongs to it, and that nothing of it outlives it."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from patching.contract import StumbledError, Tensors, failing_in, watch_blocks
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.chosen_keys import select_key_tokens
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.merging.partition import regular_partition


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


def test_threads_that_ask_for_gradients_and_threads_that_do_not_disturb_no_one() -> None:
    """Matching records none; Paddle's decorator for that would put back what another thread had."""
    x, partition = tiny.array((1, 256, 8)), regular_partition(Grid(16, 16), 2, 2)

    def ask(wanted: bool) -> bool:
        with paddle.set_grad_enabled(wanted):
            return all(match_tokens(x, partition, 64) and paddle.is_grad_enabled() == wanted for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, [True, False] * 4))


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
