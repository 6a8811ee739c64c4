"""Merging methods: what each makes of a group of tokens, and how each sits in a model."""

import copy
from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from patching.contract import marks_of
from ppdiffusers_tome import NothingToMergeError, ToMeConfig, apply_tome
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.layers import find_layer
from zoo import Specimen, specimens
from zoo.added_kv import SPECIMEN as ADDED_KV
from zoo.added_kv import TEXT_DIM as ADDED_TEXT_DIM
from zoo.specimen import TEXT_TOKENS, Inputs

EVERY = sorted(METHODS)
KEYS_ONLY = [name for name in EVERY if METHODS[name].keeps_queries]


@pytest.mark.parametrize("method", EVERY)
def test_tokens_that_are_equal_lose_nothing(method: str) -> None:
    """An image of one colour has one token many times: whatever stands for many is as good as all."""
    block = tiny.unet().down_blocks[0].attentions[0]
    block.time_proj = paddle.nn.Identity()  # so that it is a denoiser
    flat = paddle.ones([2, 8, 16, 16]) * paddle.linspace(-1, 1, 8).reshape([1, 8, 1, 1])
    with paddle.no_grad():
        plain = block(flat, encoder_hidden_states=tiny.text()).sample.numpy()
        merged = apply_tome(block, 0.7, method=method)(flat, encoder_hidden_states=tiny.text()).sample.numpy()
    np.testing.assert_allclose(merged, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "specimen",
    [
        pytest.param(each, id=each.name, marks=marks_of(each))
        for each in specimens()
        if each.reason is None and each.is_there
    ],
)
@pytest.mark.parametrize("method", KEYS_ONLY)
def test_fewer_keys_reach_keys_and_values_and_no_queries(specimen: Specimen, method: str) -> None:
    """In every kind of block that has layers for them; elsewhere it is refused in plain words."""
    model = specimen.build()
    settings: dict[str, Any] = dict(ratio=0.5, max_downsample=8, method=method)
    blocks = [block for block in find_blocks(model) if block.list_points(ToMeConfig(**settings))]
    if not blocks:
        with pytest.raises(NothingToMergeError, match=rf"nothing to merge with method='{method}'.*try .*method='tome'"):
            apply_tome(model, **settings)
        return
    counts: dict[str, list[int]] = {"to_q": [], "to_k": [], "to_v": []}
    for block in blocks:
        point = block.adapter.points["merge_attn"][0]
        for name, seen in counts.items():
            layer = find_layer(block.layer, point.join_path(name))
            layer.register_forward_post_hook(lambda _, inputs, output, seen=seen: seen.append(output.shape[1]))

    @paddle.no_grad()
    def run() -> tuple[np.ndarray, list[list[int]]]:
        paddle.seed(0)
        for seen in counts.values():
            seen.clear()
        return specimen.run(model).numpy(), copy.deepcopy([*counts.values()])

    plain, whole = run()
    apply_tome(model, **settings)
    merged, fewer = run()
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-5
    assert fewer[0] == whole[0]
    for keys, all_keys in zip(fewer[1:], whole[1:], strict=True):
        assert all(few < all_ for few, all_ in zip(keys, all_keys, strict=True))


def _attend(attention: Any, tokens: paddle.Tensor, keys: paddle.Tensor, values: paddle.Tensor) -> paddle.Tensor:
    """Attend with a mask as ppdiffusers' processors ask for one."""
    mask = attention.prepare_attention_mask(None, keys.shape[1], tokens.shape[0])
    scores = (attention.to_q(tokens) @ keys.transpose([0, 2, 1])).unsqueeze(1)
    weights = paddle.nn.functional.softmax(scores if mask is None else scores + mask, axis=-1)[:, 0]
    return attention.to_out[0](weights @ values)


def _keys_elsewhere(attention: Any, tokens: paddle.Tensor, **_: Any) -> paddle.Tensor:
    """Keys that other layers make of all tokens."""
    return _attend(attention, tokens, tokens @ attention.to_k.weight, tokens @ attention.to_v.weight)


def _attend_to_double(attention: Any, tokens: paddle.Tensor, **_: Any) -> paddle.Tensor:
    both = paddle.concat([tokens, tokens * 0.5], axis=1)
    return _attend(attention, tokens, attention.to_k(both), attention.to_v(both))


@pytest.mark.parametrize("method", KEYS_ONLY)
@pytest.mark.parametrize("ratio", [0.5, 0.75])
@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (_keys_elsewhere, "attention with function, .* does not call to_k, where ToMe .* runs unmerged"),
        (_attend_to_double, r"Linear got tokens of shape .* put other tokens beside them"),
    ],
)
def test_a_processor_whose_keys_are_others_is_told(processor: Any, words: str, method: str, ratio: float) -> None:
    unet = tiny.unet()
    for block in (found.layer for found in find_blocks(unet)):
        block.attn1.processor = processor
    plain = tiny.run_unet(unet)
    apply_tome(unet, ratio, method=method)
    with pytest.warns(UserWarning, match=words):
        assert np.array_equal(tiny.run_unet(unet), plain)
    assert not np.array_equal(tiny.run_unet(apply_tome(unet, ratio, sx=4)), plain)  # queries merge all the same


@pytest.mark.parametrize("method", ["tome", *KEYS_ONLY])
def test_tiles_around_attention_are_told(method: str) -> None:
    """As HyperTile puts them there after ToMe: attention runs on each tile, whole."""

    def run_tiles(inside: Any, hidden_states: paddle.Tensor, *args: Any, **given: Any) -> paddle.Tensor:
        batch, tokens, channels = hidden_states.shape
        tiles = hidden_states.reshape([batch * 4, tokens // 4, channels])
        return inside(tiles, *args, **given).reshape([batch, tokens, channels])

    tiled, merging = tiny.small_unet(), tiny.small_unet().apply_tome(0.5, method=method)
    for unet in (tiled, merging):
        for block in (found.layer for found in find_blocks(unet)):
            block.attn1.forward = partial(run_tiles, block.attn1.forward)
    with pytest.warns(UserWarning, match=r"so it runs unmerged: .* tiles around attention \(HyperTile\)"):
        assert np.array_equal(tiny.run_unet(merging), tiny.run_unet(tiled))


@pytest.mark.parametrize("method", KEYS_ONLY)
def test_a_text_beside_the_image_has_keys_of_its_own(method: str) -> None:
    """DeepFloyd IF's attention: how many its text has is not known where sizes would be told, also with a mask."""
    model, inputs = ADDED_KV.build(), Inputs()

    @paddle.no_grad()
    def run(**given: Any) -> np.ndarray:
        text = inputs.text(ADDED_TEXT_DIM)
        return model(inputs.image(3), inputs.timestep, encoder_hidden_states=text, **given).sample.numpy()

    plain = run()
    apply_tome(model, 0.5, method=method, max_downsample=8)
    merged = run()
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-5
    all_seen = paddle.ones([inputs.batch, TEXT_TOKENS])
    assert np.abs(run(encoder_attention_mask=all_seen) - merged).max() <= 1e-5


@pytest.mark.parametrize("method", KEYS_ONLY)
def test_a_mask_of_heads(method: str) -> None:
    unet = tiny.unet(levels=1)
    keep = tiny.keep_mask()
    tiny.run_unet(unet, attention_mask=keep.unsqueeze(1))  # ppdiffusers takes it
    apply_tome(unet, 0.5, method=method)
    expected, by_head = (tiny.run_unet(unet, attention_mask=mask) for mask in (keep, keep.unsqueeze(1)))
    assert np.abs(by_head - expected).max() <= 1e-5


@pytest.mark.parametrize("method", EVERY)
def test_a_model_runs_where_paddle_checks_every_operator_for_nans(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the flag of ``enable_tensor_checker``; empty tensors may hold NaNs, as used memory may."""

    def create_garbage(shape: Any, dtype: Any = "float32") -> paddle.Tensor:
        return paddle.full(shape, float("nan") if "float" in str(dtype) else 0, dtype)

    unet = tiny.small_unet().apply_tome(ratio=0.5, method=method)
    expected = tiny.run_unet(unet, batch=1, height=8, width=8)
    monkeypatch.setattr(paddle, "empty", create_garbage)
    paddle.set_flags({"FLAGS_check_nan_inf": 1})
    try:
        assert np.array_equal(tiny.run_unet(unet, batch=1, height=8, width=8), expected)
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": 0})
