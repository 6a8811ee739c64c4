"""The kernels with which programs are compared: what Paddle computes, and where they cannot, Paddle itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import Conv2D
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, XFormersAttnProcessor
from ppdiffusers.models.lora import LoRACompatibleConv, LoRAConv2dLayer

import tiny
from compilation.comparison import programs_alone
from patching.test_group_sizes import cosine_scores
from patching.test_processors import CASES, load_ip_adapter, load_lora, set_counting, set_sliced, set_xformers
from ppdiffusers_tome import apply_tome, compile_cpu
from ppdiffusers_tome.compilation import kernels
from ppdiffusers_tome.compilation.kernels import use_kernels


@pytest.fixture
def kernel_operators(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that kernels compute."""
    operators: list[str] = []
    compute = kernels._compute

    def note(operator: str, *args: Any, **given: Any) -> paddle.Tensor:
        operators.append(operator.rpartition(".")[2])
        return compute(operator, *args, **given)

    monkeypatch.setattr(kernels, "_compute", note)
    return operators


def plain(model: Any) -> Any:
    """With the processors that are the default on a CPU, also where a newer version has others."""
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, Attention):
            layer.set_processor(AttnProcessor())
    return model


def differ(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to values above 1."""
    return float(np.abs(found - expected).max() / max(1, np.abs(expected).max()))


@paddle.no_grad()
def run(layer: Any, *args: Any, **given: Any) -> np.ndarray:
    return layer(*args, **given).numpy()


def compare(layer: Any, *args: Any, **given: Any) -> float:
    """Return the difference of a layer's result by kernels."""
    expected = run(layer, *args, **given)
    use_kernels(layer)
    return differ(run(layer, *args, **given), expected)


@paddle.no_grad()
def reconstruct(vae: Any) -> np.ndarray:
    return vae.decode(vae.encode(tiny.array((1, 3, 32, 32), seed=1)).latent_dist.mode()).sample.numpy()


MODELS = {
    "unet": (tiny.unet, tiny.run_unet),
    "controlnet": (tiny.controlnet, tiny.run_controlnet),
    "dit": (tiny.dit, tiny.run_dit),
    "vae": (tiny.vae, reconstruct),
    "gligen": (lambda: tiny.unet(**CASES["gligen"].unet), lambda unet: tiny.run_unet(unet, **CASES["gligen"].call)),
    "text-mask": (tiny.unet, lambda unet: tiny.run_unet(unet, **CASES["text-mask"].call)),
    "mask": (lambda: tiny.unet(levels=1), lambda unet: tiny.run_unet(unet, attention_mask=tiny.keep_mask())),
    "tome": (lambda: apply_tome(tiny.unet(), **tiny.MERGE_ALL), tiny.run_unet),
    "keys": (lambda: apply_tome(tiny.unet(), 0.5, method="keys"), tiny.run_unet),
    "todo": (lambda: apply_tome(tiny.unet(), 0.5, method="todo"), tiny.run_unet),
    "merged-mask": (
        lambda: apply_tome(tiny.unet(levels=1), 0.5), lambda unet: tiny.run_unet(unet, attention_mask=tiny.keep_mask())
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_give_paddles_result(name: str, kernel_operators: list[str]) -> None:
    build, call = MODELS[name]
    model = plain(build())
    expected = call(model)
    use_kernels(model)
    assert differ(call(model), expected) <= (4e-6 if name == "vae" else 5e-6)
    layers = model.sublayers(include_self=True)
    assert kernel_operators.count("MultiHeadAttention") == sum(isinstance(layer, Attention) for layer in layers)
    assert kernel_operators.count("Conv") == sum(isinstance(layer, Conv2D) for layer in layers)


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
def test_every_setting_of_an_attention_layer_is_honoured(name: str, kernel_operators: list[str]) -> None:
    layer = plain(tiny.build(Attention, query_dim=32, heads=2, dim_head=4, **LAYERS[name]))
    x = tiny.array((3, 32, 5, 7) if name in ("image", "spatial-norm") else (3, 35, 32), seed=1)
    given: dict[str, Any] = {}
    if "cross_attention_dim" in LAYERS[name]:
        given["encoder_hidden_states"] = tiny.array((3, 6, 12), seed=2)
    if name == "spatial-norm":
        given["temb"] = tiny.array((3, 4, 5, 7), seed=3)
    assert compare(layer, x, **given) <= 2e-6
    assert "MultiHeadAttention" in kernel_operators


def attention(**given: Any) -> Attention:
    return plain(tiny.build(Attention, query_dim=8, heads=2, dim_head=4, **given))


@pytest.mark.parametrize("mask_shape", [(3, 1, 35), (3, 35, 35), (6, 1, 35), (6, 35, 35)])
def test_masks_of_every_shape_that_ppdiffusers_takes(mask_shape: tuple[int, ...], kernel_operators: list[str]) -> None:
    x, mask = tiny.array((3, 35, 8), seed=1), 3 * tiny.array(mask_shape, seed=2)
    assert compare(attention(), x, attention_mask=mask) <= 2e-6
    assert len(kernel_operators) == (mask_shape[1] == 1)  # others differ by query


@pytest.mark.parametrize("lowest", [-1e4, float(np.finfo(np.float32).min), -np.inf])
def test_masked_keys_have_no_part(lowest: float, kernel_operators: list[str]) -> None:
    layer, x, mask = attention(), tiny.array((2, 35, 8), seed=1), np.zeros((2, 1, 35), np.float32)
    mask[:, :, 20:] = lowest
    expected = run(layer, x, encoder_hidden_states=x[:, :20])
    use_kernels(layer)
    assert differ(run(layer, x, attention_mask=paddle.to_tensor(mask)), expected) <= 2e-6
    assert len(kernel_operators) == 1


@pytest.mark.parametrize("dim_head", [1, 3, 40, 41, 64, 160, 512])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_of_every_size_and_few_and_many_keys(dim_head: int, masked: bool, kernel_operators: list[str]) -> None:
    for keys in (1, 77, 700):
        layer = plain(tiny.build(Attention, query_dim=8, heads=3, dim_head=dim_head, cross_attention_dim=12))
        given = dict(encoder_hidden_states=tiny.array((2, keys, 12), seed=2))
        if masked:
            given["attention_mask"] = tiny.array((2, 1, keys), seed=3)
        assert compare(layer, tiny.array((2, 301, 8), seed=1), **given) <= 2e-6
    assert len(kernel_operators) == 3


@pytest.mark.parametrize("prepare", [set_counting, set_sliced, set_xformers, load_ip_adapter])
def test_other_processors_stay(prepare: Any, tmp_path: Path) -> None:
    unet = plain(tiny.unet())
    prepare(unet, tmp_path)
    layers = [layer for layer in unet.sublayers() if isinstance(layer, Attention)]
    kept = {id(layer): layer.processor for layer in layers if type(layer.processor) is not AttnProcessor}
    assert kept
    use_kernels(unet)
    for layer in layers:
        assert layer.processor is kept.get(id(layer), layer.processor)
        assert (type(layer.processor) is kernels.AttnProcessor) == (id(layer) not in kept)


def test_the_default_of_newer_versions_is_plain(kernel_operators: list[str]) -> None:
    layer, x = attention(), tiny.array((2, 35, 8), seed=1)
    expected = run(layer, x)
    layer.set_processor(XFormersAttnProcessor())
    use_kernels(layer)
    assert differ(run(layer, x), expected) <= 2e-6
    assert kernel_operators == ["MultiHeadAttention"]


def test_a_lora_is_scaled(tmp_path: Path) -> None:
    # LoRA weights of this size make values of which float32 holds a digit less.
    call = dict(cross_attention_kwargs=dict(scale=0.5))
    unet = tiny.unet()
    without = tiny.run_unet(unet)
    load_lora(unet, tmp_path)
    expected = tiny.run_unet(plain(unet), **call)
    assert np.abs(expected - without).max() > 1e-3
    use_kernels(unet)
    assert np.abs(tiny.run_unet(unet, **call) - expected).max() <= 1e-4


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": dict(),
    "padded": dict(padding=1),
    "one-pixel": dict(kernel_size=1),
    "oblong": dict(kernel_size=(3, 5), padding=[1, 2], stride=(1, 2), dilation=(2, 1)),
    "tuple": dict(padding=(2, 0)),
    "groups": dict(padding=1, groups=2),
    "depthwise": dict(padding=1, groups=8),
    "no-bias": dict(padding=1, bias_attr=False),
}


def convolution(cls: type, **given: Any) -> Any:
    return tiny.build(cls, **{**dict(in_channels=8, out_channels=8, kernel_size=3), **given})


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("cls", [Conv2D, LoRACompatibleConv])
@pytest.mark.parametrize(("batch", "height", "width"), [(1, 16, 16), (3, 9, 13)])
def test_a_convolution_is_paddles(
    name: str, cls: type, batch: int, height: int, width: int, kernel_operators: list[str]
) -> None:
    layer = convolution(cls, out_channels=16, **SETTINGS[name])
    assert compare(layer, tiny.array((batch, 8, height, width), seed=1)) <= 2e-6
    assert kernel_operators == ["Conv"]


def test_an_image_in_another_order_of_memory_is_read_in_its_own(kernel_operators: list[str]) -> None:
    x = tiny.array((2, 8, 9, 13), seed=1)
    for view in (x.transpose([0, 1, 3, 2]), x[:, :, ::2], x[1:]):
        assert compare(convolution(Conv2D, out_channels=4), view) <= 2e-6
    assert len(kernel_operators) == 3


class Doubling(Conv2D):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return 2 * super().forward(x)


def test_what_kernels_do_not_take_is_paddles(kernel_operators: list[str]) -> None:
    """Broadcast texts, scores of another kind, other types, subclasses, and other padding and layouts."""
    tokens, image, other = tiny.array((3, 35, 8), seed=1), tiny.array((2, 8, 12, 8), seed=1), attention()
    other.get_attention_scores = MethodType(cosine_scores, other)
    forms: list[dict[str, Any]] = [
        dict(padding="same"), dict(padding="VALID"), dict(padding=[0, 1, 2, 0]), dict(padding=1, data_format="NHWC"),
        dict(padding=[[0, 0], [0, 0], [1, 1], [2, 2]]), dict(padding=1, padding_mode="reflect"),
    ]  # fmt: skip
    for layer, *given in (
        (attention(cross_attention_dim=12), tokens, tiny.array((1, 6, 12), seed=2)),
        (attention(cross_attention_dim=12), tokens[:1], tiny.array((3, 6, 12), seed=2)),
        (other, tokens),
        (attention().to(dtype="float64"), tokens.astype("float64")),
        (convolution(Conv2D).to(dtype="float64"), image.astype("float64")),
        (convolution(Doubling), image),
        *[(convolution(cls, **form), image) for cls in (Conv2D, LoRACompatibleConv) for form in forms],
    ):
        assert compare(layer, *given) == 0
    assert kernel_operators == []


def test_a_convolution_keeps_its_lora(kernel_operators: list[str]) -> None:
    layer = convolution(LoRACompatibleConv, padding=1)
    lora = dict(in_features=8, out_features=8, rank=2, kernel_size=(3, 3), padding=1)
    layer.set_lora_layer(tiny.build(LoRAConv2dLayer, **lora))
    assert compare(layer, tiny.array((2, 8, 9, 13), seed=1), 0.5) <= 2e-6
    assert len(kernel_operators) == sum(type(each) is Conv2D for each in layer.sublayers())  # of the LoRA's own


def test_sessions_are_shared_and_have_as_many_threads_as_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    kernels._make_session.cache_clear()
    unet = plain(tiny.unet())
    use_kernels(unet)
    tiny.run_unet(unet)
    attentions = [layer for layer in unet.sublayers() if isinstance(layer, Attention)]
    before = kernels._make_session.cache_info()
    assert before.currsize < before.hits
    attributes = (("num_heads", attentions[0].heads),)
    options = kernels._make_session("com.microsoft.MultiHeadAttention", 3, attributes, 3).get_session_options()
    assert kernels._make_session.cache_info().currsize == before.currsize  # it was there
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_without_onnxruntime_a_line_says_so_and_paddle_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    unet = plain(tiny.unet())
    expected = tiny.run_unet(unet)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    kernels._make_session.cache_clear()  # of tests before
    reason = r"compared with Paddle's own attention .*pip install 'onnxruntime>=1\.20'"
    with pytest.warns(UserWarning, match=reason) as lines:
        use_kernels(unet)
    assert len([line for line in lines if "ToMe" in str(line.message)]) == 1
    assert np.array_equal(tiny.run_unet(unet), expected)


@pytest.mark.skipif(paddle.__version__.startswith("2."), reason="compile_cpu needs Paddle 3")
def test_a_program_is_compared_by_kernels_and_the_model_stays(kernel_operators: list[str]) -> None:
    model = compile_cpu(plain(tiny.small_unet()))
    before = tiny.snapshot(model)
    with programs_alone():
        tiny.run_unet(model)
    assert {*kernel_operators} == {"MultiHeadAttention", "Conv"}
    assert tiny.snapshot(model) == before
    assert {type(each) for each in model.attn_processors.values()} == {AttnProcessor}
