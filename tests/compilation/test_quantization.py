"""Layers in 8 bits: each is near its result in float32, and so are models and images."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from compilation.comparison import check_by_paddle, difference, needs_openvino, programs_alone
from compilation.programs import build_pair, get_compiled, list_families, list_openvino_models, list_programs
from ppdiffusers_tome import apply_tome, compile_cpu
from ppdiffusers_tome.machine import PRECISIONS, has_precision
from ppdiffusers_tome.tuning.similarity import compute_psnr
from zoo import Specimen
from zoo.specimen import keep_random_state

pytestmark = [*needs_openvino, pytest.mark.skipif(not has_precision("int8"), reason="needs a processor with 8 bits")]


def _convolve(ov: Any, x: Any, weight: np.ndarray, stride: int = 1, padding: int = 0) -> Any:
    return ov.convolution(x, ov.constant(weight), [stride] * 2, [padding] * 2, [padding] * 2, [1, 1])


# The shape of the input, that of the weights, and the layer.
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[..., Any]]] = {
    "3x3": ((2, 32, 8, 8), (16, 32, 3, 3), lambda ov, x, w: _convolve(ov, x, w, padding=1)),
    "3x3, half": ((2, 32, 8, 8), (16, 32, 3, 3), lambda ov, x, w: _convolve(ov, x, w, 2, 1)),
    "1x1": ((2, 32, 8, 8), (16, 32, 1, 1), _convolve),
    "1x1, half": ((2, 32, 8, 8), (16, 32, 1, 1), lambda ov, x, w: _convolve(ov, x, w, 2)),
    "of swish": ((2, 32, 8, 8), (16, 32, 3, 3), lambda ov, x, w: _convolve(ov, ov.swish(x), w)),
    "of a shortcut": (
        (2, 32, 8, 8), (16, 64, 1, 1),
        lambda ov, x, w: _convolve(ov, ov.concat([x, ov.multiply(x, np.float32(99))], 1), w),
    ),
    "of tokens side by side": (
        (2, 32, 8, 8), (16, 32, 1, 1), lambda ov, x, w: _convolve(ov, ov.concat([x, ov.abs(x)], 3), w),
    ),
    "linear": ((2, 50, 32), (32, 16), lambda ov, x, w: ov.matmul(x, ov.constant(w), False, False)),
    "linear, transposed": ((2, 50, 32), (16, 32), lambda ov, x, w: ov.matmul(x, ov.constant(w), False, True)),
    "linear, of frames": ((2, 3, 50, 32), (32, 16), lambda ov, x, w: ov.matmul(x, ov.constant(w), False, False)),
}  # fmt: skip
FLOAT_FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[..., Any]]] = {
    "of latents": ((2, 4, 8, 8), (16, 4, 3, 3), _convolve),
    "to latents": ((2, 32, 8, 8), (4, 32, 3, 3), _convolve),
    "of timesteps": ((2, 32), (32, 16), lambda ov, x, w: ov.matmul(x, ov.constant(w), False, False)),
    "two activations": ((2, 50, 32), (0,), lambda ov, x, w: ov.matmul(x, ov.abs(x), False, True)),
}


def _compute(form: tuple[Any, ...]) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """Return the results of two items, the second 1,000 times as large, in 8 bits and in float; how many layers."""
    import openvino
    from openvino import opset15

    from ppdiffusers_tome.compilation.quantization import quantize_layers

    shape, weights, write = form
    x = opset15.parameter(shape, np.float32)
    model = openvino.Model([opset15.result(write(opset15, x, tiny.array(weights, seed=2).numpy()))], [x])
    given, settings = tiny.array(shape).numpy(), {"INFERENCE_PRECISION_HINT": "f32"}
    given[1] *= 1000
    expected = openvino.compile_model(model, "CPU", settings)([given])[0]
    number = quantize_layers(model)
    return list(openvino.compile_model(model, "CPU", settings)([given])[0]), list(expected), number


@pytest.mark.parametrize("name", FORMS)
def test_a_layer_is_near_float32_for_each_image(name: str) -> None:
    found, expected, number = _compute(FORMS[name])
    assert number == 1
    for each, wanted in zip(found, expected, strict=True):
        assert 1e-4 < difference(each, wanted) < 0.02


@pytest.mark.parametrize("name", FLOAT_FORMS)
def test_a_layer_that_stays_in_float(name: str) -> None:
    found, expected, number = _compute(FLOAT_FORMS[name])
    assert number == 0
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("specimen", list_families(("controlnet", "dit", "unet")))
@paddle.no_grad()
def test_families_in_8_bits(specimen: Specimen) -> None:
    with keep_random_state():
        plain, model = build_pair(specimen)
        compile_cpu(model, "int8")
        with programs_alone():
            found = specimen.run(model, timestep=900).numpy()
        assert 1e-3 < difference(found, specimen.run(plain, timestep=900).numpy()) < 0.25


def test_photographs_in_8_bits() -> None:
    pipe = tiny.load_photographs()
    pipe.scheduler = ppdiffusers.DDIMScheduler.from_config(pipe.scheduler.config)
    given = dict(latents=tiny.array((1, 4, 32, 32), seed=3), num_inference_steps=10, guidance_scale=1.5)
    images = []
    for precision in ("float32", "int8"):
        compile_cpu(pipe.apply_tome("balanced", cache=0.2), precision)
        with programs_alone():
            images.append(pipe("a photo of a cat", **given, output_type="np").images[0])
    assert 40 < compute_psnr(*(np.uint8(255 * each + 0.5) for each in images)) < 60


@paddle.no_grad()
def test_numbers_that_are_not_finite_stay_so() -> None:
    model = compile_cpu(tiny.small_unet(), "int8")
    assert np.isfinite(model(tiny.latent() * 0, 500, tiny.text() * 0)[0].numpy()).all()
    for factor in (float("nan"), float("inf")):
        with pytest.warns(UserWarning, match="NaN or infinity, which 8 bits would hide"):
            assert np.isnan(model(tiny.latent() * factor, 500, tiny.text())[0].numpy()).all()
        get_compiled(model)._warned.clear()


@pytest.mark.parametrize("has_bfloat16", [True, False])
@paddle.no_grad()
def test_the_last_timesteps_are_in_float(has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would remove the noise of their rounding."""
    if not has_bfloat16:
        monkeypatch.setitem(PRECISIONS, "bfloat16", ("nowhere",))
    model, plain = compile_cpu(tiny.small_unet(), "int8"), compile_cpu(tiny.small_unet())
    with programs_alone():
        for timestep in (100, paddle.to_tensor([1]), paddle.to_tensor([50.5, 3.0])):
            assert np.array_equal(tiny.run_unet(model, timestep=timestep), tiny.run_unet(plain, timestep=timestep))
        for timestep in (101, paddle.to_tensor([1, 101])):
            found, expected = (tiny.run_unet(each, timestep=timestep) for each in (model, plain))
            assert 1e-3 < difference(found, expected) < 0.25
    hints = {each.get_property("INFERENCE_PRECISION_HINT").to_string() for each in list_openvino_models(model)}
    assert hints == {"bf16" if has_precision("bfloat16") else "f32"}


def test_a_model_that_8_bits_would_spoil() -> None:
    """Channels that are always zero have weights so large that all others round to zero."""
    model = tiny.unet()
    with paddle.no_grad():
        for layer in model.sublayers():
            if type(layer).__name__ == "ResnetBlock2D":
                layer.norm2.weight[0], layer.norm2.bias[0], layer.conv2.weight[:, 0] = 0.0, -60.0, 1e4
    reason = "its result in int8 differs from Paddle's by .*; give float32"
    check_by_paddle(compile_cpu(copy.deepcopy(model), "int8"), model, reason)


def test_a_model_without_such_layers() -> None:
    model = ppdiffusers.UNet2DModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(4,), norm_num_groups=2,
        down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",), attention_head_dim=None, add_attention=False,
    )  # fmt: skip
    model.eval()
    with pytest.warns(UserWarning, match="it has no layers to compute in 8 bits; give float32"), paddle.no_grad():
        compile_cpu(model, "int8")(tiny.latent(1, 16, 16), 500)


def test_swish_of_small_numbers_keeps_its_precision() -> None:
    shape, weights, write = FORMS["of swish"]
    found, expected, _ = _compute((shape, weights, lambda ov, x, w: write(ov, ov.multiply(x, np.float32(1e-6)), w)))
    for each, wanted in zip(found, expected, strict=True):
        assert difference(each, wanted) < 0.05


def test_a_step_without_such_layers_is_a_program() -> None:
    """A transformer's skipped step computes its first and last layers alone, which stay in float."""
    model = tiny.dit(num_attention_heads=5, attention_head_dim=32, num_layers=2)
    sampler = tiny.Sampler(model, tiny.scheduler())
    apply_tome(sampler, 0, cache=0.3)
    compile_cpu(model, "int8")

    def call(model: Any, number: int, timestep: float) -> None:
        labels = paddle.zeros([2], dtype="int64")
        model(tiny.latent(2), timestep=paddle.full([2], timestep, dtype="float32"), class_labels=labels)

    with programs_alone():
        sampler(call, 12)
    assert len(list_programs(model)) == 4, "computed and skipped, in 8 bits and at the last timesteps"
