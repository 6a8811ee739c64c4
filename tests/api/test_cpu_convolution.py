"""Convolutions by onnxruntime's kernel: what Paddle computes, only where nothing else stands, and apart from ToMe."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import Conv2D
from ppdiffusers.models.lora import LoRACompatibleConv, LoRAConv2dLayer

import tiny
from api.test_cpu_attention import differ, note_answers, plain, run_eagerly
from ppdiffusers_tome import apply_tome, disable_cpu_kernels, enable_cpu_kernels, remove_tome
from ppdiffusers_tome.cpu import convolution


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of images."""
    return note_answers(monkeypatch, convolution, "compute_convolution")


def functions(model: tiny.Model) -> dict[str, Any]:
    """The functions that layers of a model have of their own."""
    layers = model.named_sublayers(include_self=True)
    return {path: vars(layer)["forward"] for path, layer in layers if "forward" in vars(layer)}


def convolutions(model: tiny.Model) -> list[Conv2D]:
    return [layer for layer in model.sublayers(include_self=True) if isinstance(layer, Conv2D)]


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


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("cls", [Conv2D, LoRACompatibleConv])
@pytest.mark.parametrize(("batch", "height", "width"), [(1, 16, 16), (3, 9, 13)])
def test_result_is_paddles(
    name: str, cls: type, batch: int, height: int, width: int, computed: list[tuple[int, ...]]
) -> None:
    layer = tiny.build(cls, in_channels=8, out_channels=16, **SETTINGS[name])
    x = tiny.array((batch, 8, height, width), seed=1)
    expected = run_eagerly(layer, x)
    assert differ(run_eagerly(enable_cpu_kernels(layer), x), expected) <= 2e-6
    assert computed == [(batch, 8, height, width)]
    assert np.array_equal(run_eagerly(disable_cpu_kernels(layer), x), expected)
    assert not functions(layer)


def test_an_image_in_another_order_of_memory_is_read_in_its_own(computed: list[tuple[int, ...]]) -> None:
    layer, x = tiny.build(Conv2D, in_channels=8, out_channels=4, kernel_size=3), tiny.array((2, 8, 9, 13), seed=1)
    for view in (x.transpose([0, 1, 3, 2]), x[:, :, ::2], x[1:]):
        expected = run_eagerly(layer, view)
        assert differ(run_eagerly(enable_cpu_kernels(layer), view), expected) <= 2e-6
        disable_cpu_kernels(layer)
    assert len(computed) == 3


OTHERS: dict[str, dict[str, Any]] = {
    "same": dict(padding="same"),
    "valid": dict(padding="VALID"),
    "four-sides": dict(padding=[0, 1, 2, 0]),
    "pairs": dict(padding=[[0, 0], [0, 0], [1, 1], [2, 2]]),
    "reflect": dict(padding=1, padding_mode="reflect"),
    "channels-last": dict(padding=1, data_format="NHWC"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("cls", [Conv2D, LoRACompatibleConv])
def test_other_padding_and_layouts_are_paddles(name: str, cls: type, computed: list[tuple[int, ...]]) -> None:
    layer = tiny.build(cls, in_channels=8, out_channels=4, kernel_size=3, **OTHERS[name])
    x = tiny.array((2, 8, 12, 8), seed=1)
    expected = run_eagerly(layer, x)
    assert np.array_equal(run_eagerly(enable_cpu_kernels(layer), x), expected)
    assert computed == []


def test_other_types_and_calls_are_paddles(computed: list[tuple[int, ...]]) -> None:
    x = tiny.array((2, 8, 9, 13), seed=1)
    layer = enable_cpu_kernels(tiny.build(Conv2D, in_channels=8, out_channels=4, kernel_size=3))
    assert run_eagerly(layer, x=x).shape == (2, 4, 7, 11)
    for wrong in (x[0, 0], x[:, :7]):
        with pytest.raises((ValueError, RuntimeError)):
            run_eagerly(layer, wrong)
    assert not layer(x).stop_gradient  # of its weights
    layer.to(dtype="float64")
    expected = Conv2D.forward(layer, x.astype("float64")).numpy()
    assert np.array_equal(run_eagerly(layer, x.astype("float64")), expected)
    with pytest.raises((ValueError, RuntimeError, TypeError, SystemError)):  # on a CPU Paddle has none of these
        run_eagerly(layer.to(dtype="float16"), x.astype("float16"))
    assert computed == []


def test_gradients_are_paddles(computed: list[tuple[int, ...]]) -> None:
    layer, x = tiny.build(Conv2D, in_channels=8, out_channels=4, kernel_size=3), tiny.array((2, 8, 9, 13), seed=1)
    x.stop_gradient = False
    gradients = []
    for given in (layer, enable_cpu_kernels(layer)):
        given(x).square().mean().backward()
        gradients.append((x.grad.numpy(), layer.weight.grad.numpy()))
        x.clear_grad()
        layer.clear_gradients()
    for found, expected in zip(*gradients, strict=True):
        assert np.array_equal(found, expected)
    for tensor in (layer.weight, layer.bias):
        tensor.stop_gradient = True
    assert not layer(x).stop_gradient
    assert computed == []
    assert layer(x.detach()).stop_gradient
    assert computed == [(2, 8, 9, 13)]


@pytest.mark.parametrize("full_graph", [False, True])
@pytest.mark.parametrize("first", ["kernel", "trace"])
def test_traced_programs_have_paddles_operator(full_graph: bool, first: str) -> None:
    if not full_graph and paddle.__version__.startswith("2."):
        pytest.skip("Paddle 2.6 traces bytecode otherwise")
    parts = [tiny.build(LoRACompatibleConv, in_channels=8, out_channels=8, kernel_size=3) for _ in range(2)]
    layer, x = paddle.nn.Sequential(*parts), tiny.array((2, 8, 9, 13), seed=1)
    expected = run_eagerly(layer, x)
    if first == "kernel":
        enable_cpu_kernels(layer)
    traced = paddle.jit.to_static(layer, full_graph=full_graph)
    if first == "trace":
        enable_cpu_kernels(layer)
    for _ in range(2):
        assert differ(run_eagerly(traced, x), expected) <= 2e-6
    assert differ(run_eagerly(disable_cpu_kernels(traced), x), expected) <= 2e-6


def test_convolutions_and_attention_of_a_vae_are_computed(computed: list[tuple[int, ...]]) -> None:
    pipe = tiny.pipeline()
    image = tiny.array((1, 3, 32, 32), seed=1)
    plain(pipe.vae)

    def reconstruct(image: paddle.Tensor) -> paddle.Tensor:
        return pipe.vae.decode(pipe.vae.encode(image).latent_dist.mode()).sample

    expected = run_eagerly(reconstruct, image)
    enable_cpu_kernels(enable_cpu_kernels(pipe))
    assert differ(run_eagerly(reconstruct, image), expected) <= 4e-6
    assert len(computed) == len(convolutions(pipe.vae))
    disable_cpu_kernels(pipe)
    assert np.array_equal(run_eagerly(reconstruct, image), expected)
    assert not functions(pipe.unet)
    assert not functions(pipe.vae)


class Doubling(Conv2D):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return 2 * super().forward(x)


class Renamed(Conv2D):
    """Has the forward of its base."""


def test_a_subclass_keeps_its_own_forward(
    computed: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that it gets later."""
    x = tiny.array((2, 8, 9, 13), seed=1)
    layer = paddle.nn.Sequential(*(tiny.build(cls, in_channels=8, out_channels=8, kernel_size=3) for cls in
                                   (Doubling, Renamed, paddle.nn.Conv2DTranspose)))  # fmt: skip
    expected = run_eagerly(layer, x)
    assert differ(run_eagerly(enable_cpu_kernels(layer), x), expected) <= 2e-6
    assert [*functions(layer)] == ["1"]
    monkeypatch.setattr(Renamed, "forward", lambda self, x: x)
    assert run_eagerly(layer[1], x).shape == tuple(x.shape)
    assert len(computed) == 1


def test_hooks_and_functions_of_the_users_stay(computed: list[tuple[int, ...]]) -> None:
    layer, x = tiny.build(Conv2D, in_channels=8, out_channels=8, kernel_size=3), tiny.array((2, 8, 9, 13), seed=1)
    layer.register_forward_pre_hook(lambda layer, inputs: (2 * inputs[0],))
    layer.register_forward_post_hook(lambda layer, inputs, output: output + 1)
    expected = run_eagerly(layer, x)
    assert differ(run_eagerly(enable_cpu_kernels(layer), x), expected) <= 2e-6
    assert len(computed) == 1
    disable_cpu_kernels(layer)
    own = layer.forward = lambda x: x - 1
    assert disable_cpu_kernels(enable_cpu_kernels(layer)).forward is own
    assert len(computed) == 1


@pytest.mark.parametrize("first", ["kernel", "LoRA"])
def test_lora_on_convolutions_loaded_scaled_and_fused(first: str, computed: list[tuple[int, ...]]) -> None:
    layer = tiny.build(LoRACompatibleConv, in_channels=8, out_channels=8, kernel_size=3, padding=1)
    x, without = tiny.array((2, 8, 9, 13), seed=1), copy.deepcopy(layer)
    unchanged = run_eagerly(without, x)

    def add_lora(layer: Any) -> Any:
        layer.set_lora_layer(tiny.build(LoRAConv2dLayer, in_features=8, out_features=8, rank=2, kernel_size=(3, 3),
                                        padding=1))  # fmt: skip
        return layer

    expected = {scale: run_eagerly(add_lora(without), x, scale) for scale in (1.0, 0.5)}
    assert np.abs(expected[1.0] - unchanged).max() > 1e-3
    enable_cpu_kernels(add_lora(layer)) if first == "LoRA" else add_lora(enable_cpu_kernels(layer))
    for scale, output in expected.items():
        assert differ(run_eagerly(layer, x, scale), output) <= 2e-6
    with paddle.no_grad():
        layer._fuse_lora()
    computed.clear()
    assert differ(run_eagerly(layer, x), expected[1.0]) <= 1e-5
    with paddle.no_grad():
        layer._unfuse_lora()
    assert differ(run_eagerly(layer, x), unchanged) <= 1e-5
    assert len(computed) == 2


def test_a_copy_has_its_own_weights_and_kernel() -> None:
    unet = enable_cpu_kernels(plain(tiny.unet()))
    twin, expected = copy.deepcopy(unet), tiny.run_unet(unet)
    with paddle.no_grad():
        for layer in convolutions(unet):
            layer.weight.set_value(layer.weight * 2)
    assert np.array_equal(tiny.run_unet(twin), expected)
    assert np.abs(tiny.run_unet(unet) - expected).max() > 1e-2
    disable_cpu_kernels(unet)
    assert {function.__self__ for function in functions(twin).values()} == set(convolutions(twin))
    disable_cpu_kernels(twin)
    assert not functions(twin)


def remove_then_disable(model: Any) -> Any:
    return disable_cpu_kernels(remove_tome(model))


def disable_then_remove(model: Any) -> Any:
    return remove_tome(disable_cpu_kernels(model))


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        (tiny.MERGE_ALL, remove_then_disable), (dict(ratio=0.5, method="keys"), disable_then_remove),
        (dict(ratio=0, cache=0.2), remove_then_disable),
    ],
)  # fmt: skip
def test_tome_before_and_after(
    end: Callable[[Any], Any], settings: dict[str, Any], computed: list[tuple[int, ...]]
) -> None:
    before, after = plain(tiny.unet()), plain(tiny.unet())
    unmerged = tiny.run_unet(before)
    expected = tiny.run_unet(apply_tome(before, **settings))
    apply_tome(enable_cpu_kernels(remove_tome(before)), **settings)
    enable_cpu_kernels(apply_tome(after, **settings))
    for unet in (before, after, copy.deepcopy(before), copy.deepcopy(after)):
        computed.clear()
        assert differ(tiny.run_unet(unet), expected) <= 1e-5
        assert len(computed) == len(convolutions(unet))
        computed.clear()
        halfway = copy.deepcopy(unet)
        assert np.array_equal(tiny.run_unet(disable_cpu_kernels(halfway)), expected)
        assert computed == []
        assert differ(tiny.run_unet(remove_tome(copy.deepcopy(unet))), unmerged) <= 1e-5
        assert len(computed) == len(convolutions(unet))
        assert np.array_equal(tiny.run_unet(end(unet)), unmerged)
        assert not functions(unet)
        assert not any("_ppdiffusers_tome" in vars(layer) for layer in unet.sublayers(include_self=True))
