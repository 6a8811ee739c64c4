"""What changes while a call runs, which has one set of settings from its first layer to its last."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.accelerate import Accelerator

import tiny
from patching.helpers import EverySecond, needs_recompute
from ppdiffusers_tome import ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.layers import find_layer
from ppdiffusers_tome.patching.models import list_models

PARENT = "down_blocks.0.attentions.0"
BLOCK = f"{PARENT}.transformer_blocks.0"
QUERIES = f"{BLOCK}.attn1.to_q"
CHANGES = [dict(ratio=0.5), dict(ratio=0.75, method="keys"), dict(ratio=0.5, cache=0.5)]


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


def change_settings(model: Any, settings: dict[str, Any] | None) -> Any:
    return remove_tome(model) if settings is None else apply_tome(model, **settings)


@pytest.mark.parametrize("settings", [dict(ratio=0.5), dict(ratio=0.75, method="todo")], ids=str)
@pytest.mark.parametrize("path", ["time_proj", QUERIES])
@pytest.mark.parametrize("new", [None, dict(ratio=0.3)], ids=str)
def test_a_change_during_a_call_is_refused(settings: dict[str, Any], path: str, new: dict[str, Any] | None) -> None:
    unet = tiny.unet(levels=1)
    before = tiny.snapshot(unet)
    merged = tiny.run_unet(apply_tome(unet, **settings))
    attached = unet.tome

    def refuse() -> None:
        with pytest.raises(ToMeValueError, match=r"cannot change while a call of the denoiser runs.* shared_copy"):
            change_settings(unet, new)

    assert np.array_equal(generate_while(unet, path, refuse), merged)
    assert unet.tome == attached
    change_settings(unet, new)
    remove_tome(unet)
    assert tiny.snapshot(unet) == before


@pytest.mark.parametrize("settings", CHANGES, ids=str)
@pytest.mark.parametrize("path", ["time_proj", PARENT, QUERIES])
def test_a_call_that_began_unmerged_ends_unmerged(path: str, settings: dict[str, Any]) -> None:
    unet = tiny.unet(levels=1)
    plain = tiny.run_unet(unet)
    assert np.array_equal(generate_while(unet, path, lambda: apply_tome(unet, **settings)), plain)
    assert np.array_equal(tiny.run_unet(unet), tiny.run_unet(apply_tome(tiny.unet(levels=1), **settings)))


@pytest.mark.parametrize("settings", [*CHANGES[:2], dict(ratio=0.5, end=0.6)], ids=str)
def test_ppdiffusers_accelerator_calls_the_merging_forward(settings: dict[str, Any]) -> None:
    """With mixed precision it calls the function of ``forward``, as of a method, where there is one."""
    unet = apply_tome(tiny.unet(levels=1), **settings)
    expected, plain = tiny.run_unet(unet), tiny.run_unet(tiny.unet(levels=1))
    prepared = Accelerator(mixed_precision="bf16").prepare_model(unet)
    assert np.array_equal(tiny.run_unet(prepared), expected)
    assert np.array_equal(tiny.run_unet(remove_tome(prepared)), plain)


@needs_recompute
@pytest.mark.parametrize("new", [None, dict(ratio=0.3)], ids=str)
def test_settings_that_change_before_the_backward_pass_end_it_in_words(new: dict[str, Any] | None) -> None:
    """They would be those of the second run alone, and the gradients wrong."""
    unet = apply_tome(tiny.unet(levels=1), 0.5)
    unet.train()
    unet.enable_gradient_checkpointing()
    output = unet(tiny.latent(), 500, tiny.text()).sample
    change_settings(unet, new)
    # Paddle gives an error in a backward pass its own class, around the message.
    with pytest.raises((ToMeValueError, OSError), match="ToMe was removed or changed between a call with gradient"):
        (output**2).mean().backward()
    fresh = apply_tome(tiny.unet(levels=1), 0.5)
    change_settings(fresh, new)
    assert np.array_equal(tiny.run_unet(unet), tiny.run_unet(fresh))


@pytest.mark.parametrize("settings", CHANGES[:2], ids=str)
def test_a_traced_model_merges_and_is_traced_again_when_tome_goes(settings: dict[str, Any]) -> None:
    dit = tiny.dit(num_layers=1)
    plain, merged = tiny.run_dit(dit), tiny.run_dit(apply_tome(dit, **settings))
    assert np.abs(merged - plain).max() > 0.1
    traced = paddle.jit.to_static(dit, full_graph=True)
    for change, expected in ((lambda _: None, merged), (remove_tome, plain)):
        change(dit)
        assert np.abs(tiny.run_dit(traced) - expected).max() <= 1e-4
    with pytest.raises(ToMeValueError, match="to_static came before apply_tome on Transformer2DModel"):
        apply_tome(dit, **settings)
    assert dit.tome is None


@pytest.mark.parametrize(
    ("path", "settings", "words"),
    [
        *((path, {}, "trace the whole model") for path in (PARENT, BLOCK, f"{BLOCK}.attn1")),
        (f"{BLOCK}.attn1.to_k", dict(method="keys"), "trace the whole model"),
        ("", {}, "or without full_graph; call apply_tome first.*full_graph=True"),
    ],
)
def test_neither_a_layer_alone_nor_bytecode_is_traced(path: str, settings: dict[str, Any], words: str) -> None:
    """Tokens would be matched in Python for layers in a program, or the other way round."""
    unet, traced = apply_tome(tiny.small_unet(), 0.5, **settings), tiny.small_unet()
    for model in (unet, traced):
        paddle.jit.to_static(find_layer(model, path), full_graph=path != "")
    with pytest.raises(ToMeValueError, match=words):
        tiny.run_unet(unet)
    with pytest.raises(ToMeValueError, match=f"to_static came before apply_tome on .*{words}"):
        apply_tome(traced, 0.5, **settings)
    assert traced.tome is None


def test_a_cache_of_ppdiffusers_that_would_keep_merged_tokens_is_refused() -> None:
    pipe = tiny.pipeline()
    EverySecond.put_on(find_layer(pipe.unet, f"{BLOCK}.attn1"))
    with pytest.raises(ToMeValueError, match=r"has a cache over steps of ppdiffusers.*disable_cache\(\) before"):
        pipe.apply_tome(0.5)
    assert pipe.tome is None
    pipe = tiny.pipeline().apply_tome(0.5)
    for name in ("attn1", "attn2"):  # of which the second never merges
        EverySecond.put_on(find_layer(pipe.unet, f"{BLOCK}.{name}"))
    tiny.run_unet(pipe.unet)
    with pytest.raises(ToMeValueError, match=r"disable_cache\(\) before apply_tome"):
        pipe.apply_tome(0.3)
    assert pipe.tome.config.ratio == 0.5
    assert remove_tome(pipe).tome is None
    kept, fresh = (tiny.run_unet(pipe.unet) for _ in range(2))  # the cache stays
    assert np.array_equal(fresh, tiny.run_unet(tiny.unet()))
    assert not np.array_equal(kept, fresh)


def test_another_thread_may_set_an_attribute_of_a_pipeline_whose_models_are_listed() -> None:
    pipe = tiny.pipeline()
    for name, _ in list_models(pipe):
        vars(pipe)[f"after_{name}"] = True


def test_none_of_the_blocks_ran() -> None:
    """As with INFERENCE_OPTIMIZE=True, where ppdiffusers builds other blocks than those of the model."""
    unet = apply_tome(tiny.unet(levels=1), 0.5)
    blocks = find_blocks(unet)
    unet.kept = paddle.nn.LayerList([block.layer for block in blocks])  # still in the model
    for block in blocks:
        block.parent.transformer_blocks = paddle.nn.LayerList()
    with pytest.warns(UserWarning, match="ran none of the blocks in which .*so ToMe has no effect") as told:
        assert np.array_equal(*(tiny.run_unet(unet) for _ in range(2)))
    assert len([each for each in told if "ToMe" in str(each.message)]) == 1
