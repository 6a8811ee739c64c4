"""What changes while something runs: ToMe taken off in another thread, interrupts, traced programs, caches."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from patching.contract import EverySecond
from ppdiffusers_tome import ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.patching.layers import find_layer

QUERIES = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
SETTINGS = [
    dict(ratio=0.5), dict(ratio=0.5, merge_mlp=True, merge_crossattn=True), dict(ratio=0.75, method="keys"),
    dict(ratio=0.75, method="todo"),
]  # fmt: skip


def generate_while(unet: Any, path: str, change: Callable[[], Any]) -> np.ndarray:
    layer = dict(unet.named_sublayers())[path]
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        helper.remove()  # the change may run the UNet as well
        inside.set()
        go_on.wait(20)

    helper = layer.register_forward_pre_hook(wait)
    with ThreadPoolExecutor(1) as pool:
        output = pool.submit(tiny.run_unet, unet)
        assert inside.wait(20)
        change()
        go_on.set()
        return output.result()


def refuse(change: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ToMeValueError, match=f"cannot change {reason}.* shared_copy"):
        change()


@pytest.mark.parametrize("settings", SETTINGS[::3], ids=str)
@pytest.mark.parametrize("path", ["time_proj", QUERIES])
@pytest.mark.parametrize("new", [None, dict(ratio=0.3)], ids=str)
def test_a_change_during_a_call_is_refused(settings: dict[str, Any], path: str, new: dict[str, Any] | None) -> None:
    unet = tiny.unet(levels=1)
    before = tiny.snapshot(unet)
    merged = tiny.run_unet(apply_tome(unet, **settings))
    attached = unet.tome

    def change() -> Any:
        return remove_tome(unet) if new is None else apply_tome(unet, **new)

    result = generate_while(unet, path, lambda: refuse(change, "while a call of the denoiser runs"))
    assert np.array_equal(result, merged)
    assert unet.tome == attached
    change()
    remove_tome(unet)
    assert tiny.snapshot(unet) == before


def trace(unet: Any, wrapped: bool) -> Callable[[], np.ndarray]:
    model = paddle.jit.to_static(tiny.Positional(unet) if wrapped else unet, full_graph=True)

    @paddle.no_grad()
    def run() -> np.ndarray:
        given = tiny.latent(), paddle.to_tensor([500]), tiny.text()
        return (model(*given) if wrapped else model(*given, return_dict=False)[0]).numpy()

    return run


@pytest.mark.parametrize(("wrapped", "settings"), [(False, SETTINGS[2]), (True, SETTINGS[0])], ids=str)
def test_a_traced_model_merges_as_the_dynamic_one(wrapped: bool, settings: dict[str, Any]) -> None:
    unet = apply_tome(tiny.small_unet(), **settings)
    expected = tiny.run_unet(unet)
    run = trace(unet, wrapped)
    for _ in range(2):
        assert np.abs(run() - expected).max() <= 1e-5


def test_a_traced_model_is_traced_again_when_tome_goes() -> None:
    dit = tiny.dit(num_layers=1)
    plain, merged = tiny.run_dit(dit), tiny.run_dit(apply_tome(dit, 0.5))
    assert np.abs(merged - plain).max() > 0.1
    traced = paddle.jit.to_static(dit, full_graph=True)
    for change, expected in ((lambda _: None, merged), (remove_tome, plain)):
        change(dit)
        assert np.abs(tiny.run_dit(traced) - expected).max() <= 1e-3
    with pytest.raises(ToMeValueError, match="to_static came before apply_tome on Transformer2DModel"):
        apply_tome(dit, 0.5)
    assert dit.tome is None


PARENT = "down_blocks.0.attentions.0"
BLOCK = f"{PARENT}.transformer_blocks.0"


@pytest.mark.parametrize(
    ("path", "settings"),
    [(PARENT, {}), (BLOCK, {}), (f"{BLOCK}.attn1", {}), (f"{BLOCK}.attn1.to_k", dict(method="keys"))],
)
def test_a_layer_in_which_tokens_merge_cannot_be_traced_alone(path: str, settings: dict[str, Any]) -> None:
    """Tokens would be matched in Python for layers in a program, or the other way round."""
    unet, traced = apply_tome(tiny.small_unet(), 0.5, **settings), tiny.small_unet()
    paddle.jit.to_static(find_layer(unet, path), full_graph=True)
    with pytest.raises(ToMeValueError, match="trace the whole model"):
        tiny.run_unet(unet)
    paddle.jit.to_static(find_layer(traced, path), full_graph=True)
    with pytest.raises(ToMeValueError, match=r"to_static came before apply_tome on .*trace the whole model"):
        apply_tome(traced, 0.5, **settings)
    assert traced.tome is None


def test_tracing_bytecode_is_refused_in_words() -> None:
    unet, traced = apply_tome(tiny.unet(levels=1), 0.5), tiny.unet(levels=1)
    with pytest.raises(ToMeValueError, match=r"or without full_graph; call apply_tome first.*full_graph=True"):
        tiny.run_unet(paddle.jit.to_static(unet, full_graph=False))
    paddle.jit.to_static(traced, full_graph=False)
    with pytest.raises(ToMeValueError, match=r"to_static came before apply_tome.*full_graph=True"):
        apply_tome(traced, 0.5)
    assert traced.tome is None


def add_cache(pipe: Any) -> Any:
    """Return a pipeline one of whose attentions returns the result of every second call twice."""
    EverySecond.put_on(pipe.unet.down_blocks[0].attentions[0].transformer_blocks[0].attn1)
    return pipe


def test_a_cache_of_ppdiffusers_that_would_keep_merged_tokens_is_refused() -> None:
    pipe = add_cache(tiny.pipeline())
    with pytest.raises(ToMeValueError, match=r"has a cache over steps of ppdiffusers.*disable_cache\(\) before"):
        pipe.apply_tome(0.5)
    assert pipe.tome is None
    pipe = add_cache(tiny.pipeline().apply_tome(0.5))
    EverySecond.put_on(pipe.unet.down_blocks[0].attentions[0].transformer_blocks[0].attn2)  # which never merges
    tiny.run_unet(pipe.unet)
    with pytest.raises(ToMeValueError, match=r"disable_cache\(\) before apply_tome"):
        pipe.apply_tome(0.3)
    assert pipe.tome.config.ratio == 0.5
    assert remove_tome(pipe).tome is None
    kept, fresh = (tiny.run_unet(pipe.unet) for _ in range(2))  # the cache stays
    assert np.array_equal(fresh, tiny.run_unet(tiny.unet()))
    assert not np.array_equal(kept, fresh)


def test_none_of_the_blocks_ran() -> None:
    """As with INFERENCE_OPTIMIZE=True, where ppdiffusers builds other blocks than those of the model."""
    unet = tiny.unet(levels=1)

    class Empty(paddle.nn.Layer):
        def forward(self, hidden_states: paddle.Tensor, *args: Any, **kwargs: Any) -> Any:
            return (hidden_states,) if kwargs.get("return_dict") is False else SimpleNamespace(sample=hidden_states)

    apply_tome(unet, 0.5)
    unet.kept = paddle.nn.LayerList()
    for block in (*unet.down_blocks, unet.mid_block, *unet.up_blocks):
        unet.kept.extend(list(block.attentions))  # still in the model
        for number in range(len(block.attentions)):
            block.attentions[number] = Empty()
    with pytest.warns(UserWarning, match="ran none of the blocks in which .*so ToMe has no effect") as told:
        tiny.run_unet(unet)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.run_unet(unet)
    assert len([each for each in told if "none of the blocks" in str(each.message)]) == 1
