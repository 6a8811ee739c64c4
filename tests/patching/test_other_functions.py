"""What others put on the layers that ToMe is applied to: hooks, adapters such as LoRA, masks, keys of other tokens."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from ppdiffusers.accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

import tiny
from compilation.comparison import difference, needs_openvino
from ppdiffusers_tome import ToMeValueError, apply_tome, compile_cpu, remove_tome, uncompile_cpu, use_tome
from ppdiffusers_tome.compilation.comparison import BOUNDS
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.layers import find_layer
from zoo import Specimen, specimens

USUAL = ("unet", "unet_unconditional", "sd3", "wuerstchen_prior", "uvit")
SPECIMENS = [
    pytest.param(specimen, id=specimen.name, marks=[] if specimen.name in USUAL else pytest.mark.sweep)
    for specimen in specimens()
    if not specimen.since and specimen.reason is None
]
METHODS = ["tome", "keys", "todo"]
ATTENTION = "down_blocks.0.attentions.0.transformer_blocks.0.attn1"


def apply_and_compile(model: Any, *args: Any, **given: Any) -> Any:
    with contextlib.suppress(ToMeValueError):  # refused where a function stands in place of the model's forward
        compile_cpu(model, "float32")
    return apply_tome(model, *args, **given)


@dataclass(frozen=True)
class Mode:
    """How ToMe is applied and removed, and which outputs are the same."""

    apply: Callable[..., Any] = apply_tome
    remove: Callable[[Any], Any] = remove_tome
    is_same: Callable[[np.ndarray, np.ndarray], bool] = np.array_equal

    def run_merged(self, ratio: float, **settings: Any) -> np.ndarray:
        return tiny.run_unet(self.apply(tiny.unet(levels=1), ratio, **settings))


COMPILED = Mode(  # the results of Paddle and of a program are equal to rounding
    apply_and_compile,
    lambda model: uncompile_cpu(remove_tome(model)),
    lambda one, two: difference(one, two) <= BOUNDS["float32"],
)


@pytest.fixture(
    params=[Mode(), pytest.param(COMPILED, marks=[*needs_openvino, pytest.mark.sweep])], ids=["paddle", "compiled"]
)
def mode(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mode:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where it is noted that a program was compared
    return request.param


@paddle.no_grad()
def run(specimen: Specimen, model: Any) -> np.ndarray:
    return specimen.run(model).numpy()


def attentions_of(model: Any) -> list[Any]:
    found = {}
    for block in find_blocks(model):
        for point in block.adapter.points["merge_attn"][:1]:
            layer = find_layer(block.layer, point.layer)
            if hasattr(layer, "to_k"):  # some blocks of the latent upscaler have cross-attention alone
                found[id(layer)] = layer
    return list(found.values())


class LowRank(nn.Layer):
    """A linear layer and what a LoRA adds to it, as PEFT wraps it."""

    def __init__(self, base: nn.Layer, seed: int) -> None:
        super().__init__()
        self.base_layer = base
        rows, columns = base.weight.shape
        self.down, self.up = tiny.array((rows, 2), seed=seed), tiny.array((2, columns), seed=seed + 1)

    @property
    def weight(self) -> paddle.Tensor:
        return self.base_layer.weight

    def forward(self, x: paddle.Tensor, *args: Any) -> paddle.Tensor:
        return self.base_layer(x, *args) + 0.1 * (x @ self.down) @ self.up


def put_lora(model: Any) -> None:
    for number, attention in enumerate(attentions_of(model)):
        for name in ("to_q", "to_k", "to_v"):
            setattr(attention, name, LowRank(getattr(attention, name), seed=number))


def take_lora_off(model: Any) -> None:
    for attention in attentions_of(model):
        for name in ("to_q", "to_k", "to_v"):
            setattr(attention, name, copy.deepcopy(getattr(attention, name).base_layer))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("specimen", SPECIMENS)
def test_a_lora_may_come_before_or_after_and_be_unloaded(mode: Mode, specimen: Specimen, method: str) -> None:
    first, after = specimen.build(), specimen.build()
    if not attentions_of(first):
        pytest.skip("keys and values come from one layer")
    put_lora(first)
    expected = run(specimen, mode.apply(first, 0.5, method=method))
    merged = run(specimen, mode.apply(after, 0.5, method=method))
    put_lora(after)
    assert mode.is_same(run(specimen, after), expected)
    assert np.abs(expected - merged).max() > 1e-4
    take_lora_off(first)
    assert mode.is_same(run(specimen, first), merged)
    run(specimen, mode.remove(after))
    assert not [layer for layer in after.sublayers(include_self=True) if "forward" in vars(layer)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("settings", [dict(ratio=0.5), dict(config="quality"), dict(ratio=0.5, merge_mlp=True)])
def test_a_hook_of_the_user_sees_all_tokens(mode: Mode, settings: dict[str, Any], when: str) -> None:
    """Also what it puts in their place stays: plug-and-play injects features of a reference image so."""
    unet = tiny.unet(levels=1)
    block = unet.down_blocks[0].attentions[0].transformer_blocks[0]
    features, shapes, outputs = tiny.array((2, 256, 8), seed=5), [], []

    def put_hooks() -> None:
        for layer in (block.attn1, block.ff):
            layer.register_forward_pre_hook(lambda layer, inputs: shapes.append(inputs[0].shape))
            layer.register_forward_post_hook(lambda layer, inputs, output: shapes.append(output.shape))
        block.attn1.register_forward_post_hook(lambda layer, inputs, output: features)

    if when == "before":
        put_hooks()
    mode.apply(unet, **settings)
    if when == "after":
        put_hooks()
    block.attn1.register_forward_post_hook(lambda layer, inputs, output: outputs.append(output))
    tiny.run_unet(unet)
    assert shapes == [[2, 256, 8]] * 4
    assert outputs[0] is features


@pytest.mark.parametrize("method", ["tome", "keys"])
def test_a_function_that_leaves_attention_out_in_some_calls(mode: Mode, method: str) -> None:
    """Of merged tokens, too: what it returns for all of them stays."""
    unet = tiny.unet(levels=1)
    attention = unet.down_blocks[0].attentions[0].transformer_blocks[0].attn1
    own, features, outputs = attention.forward, [tiny.array((2, 256, 8), seed=5)], []
    attention.forward = lambda *args, **kwargs: features[0] if features else own(*args, **kwargs)
    mode.apply(unet, 0.5, method=method)
    attention.register_forward_post_hook(lambda layer, inputs, output: outputs.append(output))
    tiny.run_unet(unet)
    assert outputs[0] is features.pop()
    assert mode.is_same(tiny.run_unet(unet), mode.run_merged(0.5, method=method))


class GivenMore(nn.Layer):
    """Attention that gets more keywords, which a function makes of its tokens."""

    def __init__(self, attention: Any, more: Callable[[paddle.Tensor], dict[str, paddle.Tensor]]) -> None:
        super().__init__()
        self.inner, self.more = attention, more

    def forward(self, tokens: paddle.Tensor, **kwargs: Any) -> Any:
        return self.inner(tokens, **{**kwargs, **self.more(tokens)})


def mask_regions(tokens: paddle.Tensor) -> dict[str, paddle.Tensor]:
    """Mask a text with a row for each token, as regional prompting does."""
    mask = np.zeros((2, tokens.shape[1], tiny.TEXT_TOKENS), np.float32)
    mask[:, ::2, 2:] = -10000
    return dict(attention_mask=paddle.to_tensor(mask))


def add_keys(tokens: paddle.Tensor) -> dict[str, paddle.Tensor]:
    """Add the tokens of a reference image, as reference-only and style-aligned do."""
    return dict(encoder_hidden_states=paddle.concat([tokens, tokens[:, ::2]], axis=1))


def test_a_text_mask_with_a_row_for_each_token(mode: Mode) -> None:
    """Such cross-attention runs unmerged, and the rest of the block merges."""
    unet, expected = tiny.unet(levels=1), mode.apply(tiny.unet(levels=1), 0.5)
    mode.apply(unet, 0.5, merge_crossattn=True)
    for model in (unet, expected):
        for block in find_blocks(model):
            block.layer.attn2 = GivenMore(block.layer.attn2, mask_regions)
    with pytest.warns(UserWarning, match="attention_mask with a row for each token, so it runs unmerged"):
        assert mode.is_same(tiny.run_unet(unet), tiny.run_unet(expected))


@pytest.mark.parametrize("method", METHODS)
def test_self_attention_with_keys_of_other_tokens(mode: Mode, method: str) -> None:
    unet, plain = mode.apply(tiny.unet(levels=1), 0.5, method=method), tiny.unet(levels=1)
    for model in (unet, plain):
        block = model.down_blocks[0].attentions[0].transformer_blocks[0]
        block.attn1 = GivenMore(block.attn1, add_keys)
    expected = tiny.run_unet(plain)
    assert np.abs(tiny.run_unet(unet) - expected).max() > 1e-4
    assert mode.is_same(tiny.run_unet(mode.remove(unet)), expected)


@pytest.mark.parametrize("path", ["", "time_proj", "down_blocks.0.attentions.0", ATTENTION])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_function_in_place_of_forward_neither_hides_nor_removes_it(mode: Mode, path: str, when: str) -> None:
    """Of any layer, also one that calls the method of the layer's class."""
    unet = tiny.unet(levels=1)
    layer, calls = dict(unet.named_sublayers(include_self=True))[path], []

    if when == "after":
        mode.apply(unet, 0.5)
    own = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return own(*args, **kwargs) if when == "after" else type(layer).forward(layer, *args, **kwargs)

    layer.forward = forward
    if when == "before":
        mode.apply(unet, 0.5)
    assert mode.is_same(tiny.run_unet(unet), mode.run_merged(0.5))
    assert unet.tome.blocks == {"": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor is ToMe said to have no effect
        with use_tome(unet, 0.3):
            assert mode.is_same(tiny.run_unet(unet), mode.run_merged(0.3))
    assert unet.tome.config.ratio == 0.5
    assert mode.is_same(tiny.run_unet(mode.remove(unet)), tiny.run_unet(tiny.unet(levels=1)))
    assert layer.forward is forward
    assert len(calls) == 3


@pytest.mark.parametrize("path", ["", ATTENTION])
def test_functions_from_before_and_after_run_when_it_is_applied_again(mode: Mode, path: str) -> None:
    unet, calls = tiny.unet(levels=1), []
    layer = find_layer(unet, path)

    def put(name: str) -> None:
        own = layer.forward
        layer.forward = lambda *args, **kwargs: calls.append(name) or own(*args, **kwargs)

    put("before")
    mode.apply(unet, 0.3)
    put("after")
    assert mode.is_same(tiny.run_unet(mode.apply(unet, 0.5)), mode.run_merged(0.5))
    assert mode.is_same(tiny.run_unet(mode.remove(unet)), mode.run_merged(0.0))
    assert calls == ["after", "before"] * 2


@pytest.mark.parametrize("path", ["", "time_proj", "down_blocks.0.attentions.0", ATTENTION])
def test_a_hook_from_after_may_go_and_come_again(mode: Mode, path: str) -> None:
    """As ``enable_model_cpu_offload`` does after every image."""
    unet = mode.apply(tiny.unet(levels=1), 0.3)
    layer = find_layer(unet, path)
    add_hook_to_module(layer, ModelHook())
    mode.apply(unet, 0.5)
    for _ in range(2):
        remove_hook_from_module(layer)
        add_hook_to_module(layer, ModelHook())
        assert mode.is_same(tiny.run_unet(unet), mode.run_merged(0.5))
    remove_hook_from_module(layer)
    assert mode.is_same(tiny.run_unet(unet), mode.run_merged(0.5))
    plain = tiny.run_unet(tiny.unet(levels=1))
    assert mode.is_same(tiny.run_unet(mode.remove(unet)), plain)
    assert tiny.snapshot(unet).keys() == tiny.snapshot(tiny.unet(levels=1)).keys()
    assert "forward" not in vars(layer)


def test_a_hook_from_before_that_comes_again_takes_it_off_until_it_is_applied_again(mode: Mode) -> None:
    """It puts back what it first found, and a warning says so; so it is with a function that calls nothing it found."""
    unet = tiny.unet(levels=1)
    add_hook_to_module(unet, ModelHook())
    mode.apply(unet, 0.5)
    assert mode.is_same(tiny.run_unet(unet), mode.run_merged(0.5))
    add_hook_to_module(unet, ModelHook())
    with pytest.warns(UserWarning, match="ran outside of a call of its denoiser, so unmerged.*call apply_tome again"):
        (found,) = tiny.Sampler(unet, tiny.scheduler())(lambda unet, *_: tiny.run_unet(unet), 1)
    assert mode.is_same(found, mode.run_merged(0.0))
    for _ in range(2):
        mode.apply(unet, 0.5)
        assert mode.is_same(tiny.run_unet(unet), mode.run_merged(0.5))


@pytest.mark.filterwarnings("error:ToMe")
def test_a_block_of_two_models_runs_in_either(mode: Mode) -> None:
    """As in Versatile Diffusion's."""
    one, other = tiny.unet(levels=1), tiny.unet(levels=1)
    other.mid_block = one.mid_block
    for image in mode.apply(tiny.Models(one, other), 0.5)(tiny.run_unet):
        assert mode.is_same(image, mode.run_merged(0.5))


def test_a_function_that_is_taken_off_after_tome(mode: Mode) -> None:
    """Removing does not know what a function around ToMe's own calls, so its place is kept until that goes."""
    model = mode.apply(tiny.small_unet(), 0.5)
    method = model.forward
    model.forward = lambda *args, **kwargs: method(*args, **kwargs)
    mode.remove(model)
    model.forward = method
    assert mode.is_same(tiny.run_unet(model), tiny.run_unet(tiny.small_unet()))
    mode.remove(model)
    assert "forward" not in vars(model)
