"""Attention and convolutions in slices, by which programs are compared: what Paddle computes at once."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import Conv2D
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, XFormersAttnProcessor
from ppdiffusers.models.lora import LoRACompatibleConv, LoRAConv2dLayer

import tiny
from compilation.comparison import programs_alone
from patching.processors import CASES, load_ip_adapter, load_lora, set_counting, set_sliced, set_xformers
from ppdiffusers_tome import apply_tome, compile_cpu
from ppdiffusers_tome.compilation import comparison, slices
from ppdiffusers_tome.compilation.slices import compute_in_slices

KEEP = paddle.to_tensor(np.arange(512).reshape([2, 256]) % 7 > 1).astype("float32")


@pytest.fixture
def op_counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Make slices of 500 numbers, and count what is computed."""
    counts: Counter[str] = Counter()
    monkeypatch.setattr(slices, "_MOST_SCORES", 500)
    monkeypatch.setattr(slices, "_MOST_UNFOLDED", 500)

    def count(owner: Any, name: str) -> None:
        compute = getattr(owner, name)

        def run(*args: Any, **given: Any) -> paddle.Tensor:
            counts[name] += 1
            return compute(*args, **given)

        monkeypatch.setattr(owner, name, run)

    count(Attention, "get_attention_scores")
    count(slices.F, "conv2d")
    return counts


def plain(model: Any) -> Any:
    """With the processors that are the default on a CPU, also where a newer version has others."""
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, Attention):
            layer.set_processor(AttnProcessor())
    return model


@paddle.no_grad()
def run(layer: Any, *args: Any, **given: Any) -> np.ndarray:
    return layer(*args, **given).numpy()


def require_same(layer: Any, op_counts: Counter[str], *args: Any, **given: Any) -> Counter[str]:
    """Compare a layer's result in slices with its own; return how often more was computed."""
    expected, before = run(layer, *args, **given), op_counts.copy()
    compute_in_slices(layer)
    found, once = run(layer, *args, **given), op_counts - before
    assert np.abs(found - expected).max() <= 5e-6 * max(1, np.abs(expected).max())
    return once - before


@paddle.no_grad()
def reconstruct(vae: Any) -> np.ndarray:
    return vae.decode(vae.encode(tiny.array((1, 3, 32, 32), seed=1)).latent_dist.mode()).sample.numpy()


MODELS = {
    "unet": (tiny.unet, tiny.run_unet),
    "vae": (tiny.vae, reconstruct),
    "controlnet": (tiny.controlnet, tiny.run_controlnet),
    "dit": (tiny.dit, tiny.run_dit),
    "gligen": (lambda: tiny.unet(**CASES["gligen"].unet), lambda unet: tiny.run_unet(unet, **CASES["gligen"].call)),
    "text-mask": (tiny.unet, lambda unet: tiny.run_unet(unet, **CASES["text-mask"].call)),
    "mask": (lambda: tiny.unet(levels=1), lambda unet: tiny.run_unet(unet, attention_mask=KEEP)),
    "tome": (lambda: apply_tome(tiny.unet(), **tiny.MERGE_ALL), tiny.run_unet),
    "keys": (lambda: apply_tome(tiny.unet(), 0.5, method="keys"), tiny.run_unet),
    "todo": (lambda: apply_tome(tiny.unet(), 0.5, method="todo"), tiny.run_unet),
    "merged-mask": (
        lambda: apply_tome(tiny.unet(levels=1), 0.5), lambda unet: tiny.run_unet(unet, attention_mask=KEEP)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_give_paddles_result(name: str, op_counts: Counter[str]) -> None:
    build, call = MODELS[name]
    model = plain(build())
    expected, before = call(model), op_counts.copy()
    compute_in_slices(model)
    assert np.abs(call(model) - expected).max() <= 5e-6 * max(1, np.abs(expected).max())
    assert all(op_counts[each] > 3 * before[each] > 0 for each in before)


LAYERS: dict[str, dict[str, Any]] = {
    "self": dict(),
    "cross": dict(cross_attention_dim=12),
    "layer-norm": dict(cross_attention_dim=12, cross_attention_norm="layer_norm"),
    "group-norm": dict(cross_attention_dim=12, cross_attention_norm="group_norm", cross_attention_norm_num_groups=4),
    "image": dict(norm_num_groups=4, residual_connection=True, rescale_output_factor=1.7, bias=True),
    "spatial-norm": dict(norm_num_groups=4, spatial_norm_dim=4, residual_connection=True),
    "no-scale": dict(scale_qk=False),
    "upcast-attention": dict(upcast_attention=True),
    "upcast-softmax": dict(upcast_softmax=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_setting_of_an_attention_layer_is_honoured(name: str, op_counts: Counter[str]) -> None:
    layer = plain(tiny.build(Attention, query_dim=32, heads=2, dim_head=4, **LAYERS[name]))
    x = tiny.array((3, 32, 5, 7) if name in ("image", "spatial-norm") else (3, 35, 32), seed=1)
    given: dict[str, Any] = {}
    if "cross_attention_dim" in LAYERS[name]:
        given["encoder_hidden_states"] = tiny.array((3, 6, 12), seed=2)
    if name == "spatial-norm":
        given["temb"] = tiny.array((3, 4, 5, 7), seed=3)
    assert require_same(layer, op_counts, x, **given)["get_attention_scores"] >= 2


def attention(**given: Any) -> Attention:
    return plain(tiny.build(Attention, query_dim=8, heads=2, dim_head=4, **given))


@pytest.mark.parametrize("mask_shape", [(3, 1, 35), (3, 35, 35), (6, 1, 35), (6, 35, 35)])
def test_masks_of_every_shape_that_ppdiffusers_takes(mask_shape: tuple[int, ...], op_counts: Counter[str]) -> None:
    x, mask = tiny.array((3, 35, 8), seed=1), 3 * tiny.array(mask_shape, seed=2)
    assert require_same(attention(), op_counts, x, attention_mask=mask)["get_attention_scores"] >= 2


@pytest.mark.parametrize(("images", "texts"), [(3, 1), (1, 3)])
def test_one_text_for_several_images_is_broadcast(images: int, texts: int, op_counts: Counter[str]) -> None:
    x, text = tiny.array((images, 35, 8), seed=1), tiny.array((texts, 6, 12), seed=2)
    require_same(attention(cross_attention_dim=12), op_counts, x, text)


@pytest.mark.parametrize("prepare", [set_counting, set_sliced, set_xformers, load_ip_adapter])
def test_other_processors_stay(prepare: Any, tmp_path: Path) -> None:
    unet = plain(tiny.unet())
    prepare(unet, tmp_path)
    layers = [layer for layer in unet.sublayers() if isinstance(layer, Attention)]
    kept = {id(layer): layer.processor for layer in layers if type(layer.processor) is not AttnProcessor}
    assert kept
    compute_in_slices(unet)
    for layer in layers:
        assert layer.processor is kept.get(id(layer), layer.processor)
        assert (type(layer.processor) is slices.SlicedProcessor) == (id(layer) not in kept)


def test_the_default_of_newer_versions_is_plain(op_counts: Counter[str]) -> None:
    layer, x = attention(), tiny.array((2, 35, 8), seed=1)
    expected, before = run(layer, x), op_counts.copy()
    layer.set_processor(XFormersAttnProcessor())
    compute_in_slices(layer)
    assert np.abs(run(layer, x) - expected).max() <= 2e-6
    assert op_counts["get_attention_scores"] >= before["get_attention_scores"] + 2


def test_a_lora_is_scaled(tmp_path: Path, op_counts: Counter[str]) -> None:
    # LoRA weights of this size make values of which float32 holds a digit less.
    call = dict(cross_attention_kwargs=dict(scale=0.5))
    unet = tiny.unet()
    without = tiny.run_unet(unet)
    load_lora(unet, tmp_path)
    expected = tiny.run_unet(plain(unet), **call)
    assert np.abs(expected - without).max() > 1e-3
    compute_in_slices(unet)
    assert np.abs(tiny.run_unet(unet, **call) - expected).max() <= 1e-4


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": dict(kernel_size=3),
    "padded": dict(kernel_size=3, padding=1),
    "one-pixel": dict(kernel_size=1),
    "oblong": dict(kernel_size=(3, 5), padding=[1, 2], stride=(1, 2), dilation=(2, 1)),
    "tuple": dict(kernel_size=3, padding=(2, 0)),
    "stride": dict(kernel_size=3, padding=1, stride=2),
    "dilation": dict(kernel_size=3, padding=2, dilation=2),
    "groups": dict(kernel_size=3, padding=1, groups=2),
    "depthwise": dict(kernel_size=3, padding=1, groups=8),
    "no-bias": dict(kernel_size=3, padding=1, bias_attr=False),
}
# Computed at once.
OTHERS: dict[str, dict[str, Any]] = {
    "same": dict(kernel_size=3, padding="same"),
    "valid": dict(kernel_size=3, padding="VALID"),
    "four-sides": dict(kernel_size=3, padding=[0, 1, 2, 0]),
    "pairs": dict(kernel_size=3, padding=[[0, 0], [0, 0], [1, 1], [2, 2]]),
    "reflect": dict(kernel_size=3, padding=1, padding_mode="reflect"),
    "channels-last": dict(kernel_size=3, padding=1, data_format="NHWC"),
}


@pytest.mark.parametrize("name", SETTINGS | OTHERS)
@pytest.mark.parametrize("cls", [Conv2D, LoRACompatibleConv])
def test_a_convolution_is_paddles(name: str, cls: type, op_counts: Counter[str]) -> None:
    layer = tiny.build(cls, in_channels=8, out_channels=16, **{**SETTINGS, **OTHERS}[name])
    more = require_same(layer, op_counts, tiny.array((3, 8, 9, 8), seed=1))
    assert (more["conv2d"] >= 2) == (name in SETTINGS)


class Doubling(Conv2D):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return 2 * super().forward(x)


def test_a_subclass_keeps_its_forward_and_a_convolution_its_lora(op_counts: Counter[str]) -> None:
    x = tiny.array((2, 8, 9, 13), seed=1)
    require_same(tiny.build(Doubling, in_channels=8, out_channels=8, kernel_size=3), op_counts, x)
    layer = tiny.build(LoRACompatibleConv, in_channels=8, out_channels=8, kernel_size=3, padding=1)
    layer.set_lora_layer(tiny.build(LoRAConv2dLayer, in_features=8, out_features=8, rank=2, kernel_size=(3, 3),
                                    padding=1))  # fmt: skip
    require_same(layer, op_counts, x, 0.5)


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
def test_a_program_is_compared_in_slices_and_the_model_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    twins: list[Any] = []
    monkeypatch.setattr(comparison, "compute_in_slices", lambda twin: (twins.append(twin), compute_in_slices(twin)))
    model = compile_cpu(plain(tiny.small_unet()), "float32")
    before = tiny.snapshot(model)
    with programs_alone():
        tiny.run_unet(model)
    [twin] = twins
    assert {type(each) for each in twin.attn_processors.values()} == {slices.SlicedProcessor}
    assert tiny.snapshot(model) == before
    assert {type(each) for each in model.attn_processors.values()} == {AttnProcessor}
