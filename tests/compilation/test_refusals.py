"""What is refused, what Paddle computes with a warning, and what a user's mistakes end in."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from compilation.comparison import (
    BY_PADDLE,
    check_by_paddle,
    check_same,
    compile_small_unet,
    difference,
    needs_openvino,
    programs_alone,
)
from ppdiffusers_tome import ToMeError, ToMeTypeError, ToMeValueError, apply_tome, compile_cpu, uncompile_cpu
from ppdiffusers_tome.compilation import api, contents
from ppdiffusers_tome.compilation import model as compiled_model

needs_3 = needs_openvino[0]
needs_programs = [*needs_openvino]


class _Counting(paddle.nn.Layer):
    """Writes into a buffer in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", paddle.ones([1]))
        self.eval()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        y = x.cast("float32") * self.count
        self.count = self.count + 1
        return y


class _Embedding(paddle.nn.Layer):
    """Gives zeros for a number whose row has none."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(2, 4, padding_idx=0)
        self.embedding.weight.set_value(paddle.arange(1, 9, dtype="float32").reshape([2, 4]))
        self.eval()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.embedding(x)


@pytest.mark.skipif(not paddle.__version__.startswith("2."), reason="of Paddle 2.6")
def test_paddle_2_is_refused() -> None:
    with pytest.raises(ToMeValueError, match="needs Paddle 3"):
        compile_cpu(tiny.small_unet())


@needs_3
def test_without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setitem(sys.modules, "openvino.opset15", None)
    model = tiny.small_unet()
    with pytest.raises(ToMeValueError, match=r"pip install 'openvino>="):
        compile_cpu(model)
    assert "forward" not in vars(model)


def _convert_to_half(model: Any) -> Any:
    return model.to(dtype="float16")


def _convert_to_bfloat16(model: Any) -> Any:
    return model.to(dtype="bfloat16")


def _start_training(model: Any) -> Any:
    model.train()
    return model


def _replace_forward(model: Any) -> Any:
    model.forward = MethodType(lambda layer, *args, **kwargs: type(layer).forward(layer, *args, **kwargs), model)
    return model


def _transpose_weight(model: Any) -> Any:
    linear = model.time_embedding.linear_1
    weight = linear.weight.detach()
    del linear.weight
    linear.register_buffer("weight", weight.t().contiguous().t())
    return model


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (_convert_to_half, "weights are in paddle.float16; load it in float32"),
        (_convert_to_bfloat16, "weights are in paddle.bfloat16; load it in float32"),
        (_start_training, "training mode; call its eval"),
        (_replace_forward, "a function in place of its forward"),
        (_transpose_weight, "view of another tensor"),
    ],
)
@needs_programs[0]
@needs_programs[1]
def test_models_that_are_refused_stay_as_they_are(prepare: Any, reason: str) -> None:
    pipe = tiny.pipeline(unet=tiny.small_unet())
    prepare(pipe.unet)
    before = tiny.snapshot(pipe.unet)
    with pytest.raises(ToMeValueError, match=rf"^unet cannot be compiled: .*{reason}"):
        compile_cpu(pipe)
    assert tiny.snapshot(pipe.unet) == before
    assert "forward" not in vars(pipe.vae.decoder), "the decoder was compiled though the UNet cannot be"


@needs_3
@pytest.mark.parametrize("value", [3, None, "unet", paddle.nn.Layer, tiny.scheduler()], ids=str)
def test_what_is_no_model(value: Any) -> None:
    for function in (compile_cpu, uncompile_cpu):
        with pytest.raises(ToMeTypeError, match="pipeline or model"):
            function(value)


@pytest.mark.parametrize("precision", ["float16", None, 32, [], "BFLOAT16"], ids=str)
def test_a_precision_that_is_none(precision: Any) -> None:
    with pytest.raises(ToMeError, match="precision must be 'float32' or 'bfloat16' or 'int8'; got"):
        compile_cpu(tiny.small_unet(), precision)


class TestWithPrograms:
    pytestmark = needs_openvino

    @pytest.mark.parametrize("precision", ["bfloat16", "int8"])
    def test_a_precision_needs_a_processor(self, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api, "has_precision", lambda name: False)
        with pytest.raises(ToMeValueError, match=f"{precision} needs a processor .* this one is not; give float32"):
            compile_cpu(tiny.small_unet(), precision)

    def test_bfloat16_without_a_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api, "has_precision", lambda name: True)
        # OpenVINO computes in float32 where it is missing.
        model = compile_cpu(tiny.small_unet(), "bfloat16")
        with programs_alone():
            found = tiny.run_unet(model)
        assert np.abs(found - tiny.run_unet(tiny.small_unet())).max() <= 0.1

    def test_a_user_s_own_mistake_raises_paddle_s_error(self) -> None:
        model, plain = compile_small_unet(), tiny.small_unet()
        for args in ((tiny.latent()[:, :3], 500, tiny.text()), (tiny.latent(), 500), ("a", 500, tiny.text())):
            errors = []
            for each in (plain, model):
                with warnings.catch_warnings(), pytest.raises(Exception) as raised, paddle.no_grad():  # noqa: PT011, PT012
                    warnings.simplefilter("ignore")
                    each(*args)
                errors.append((raised.type, str(raised.value)))
            assert errors[0] == errors[1]
        check_same(model, plain)

    def test_a_program_that_differs(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """It is never used, and nothing is noted for the next process."""
        from ppdiffusers_tome.compilation import operators

        silu = operators.OPERATORS["silu"]
        monkeypatch.setitem(operators.OPERATORS, "silu", lambda op: operators.ov.multiply(silu(op), np.float32(1.003)))
        model, expected = compile_small_unet(), tiny.run_unet(tiny.small_unet())
        with pytest.warns(UserWarning, match=r"differs from Paddle's by 0\.00\d+, more than 0\.001"):
            assert difference(tiny.run_unet(model), expected) <= 1e-4
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the same is said once
            assert difference(tiny.run_unet(model, timestep=40), tiny.run_unet(tiny.small_unet(), timestep=40)) <= 1e-4
        assert not cache.exists()

    def test_a_refused_program_leaves_the_call_its_destinations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(compiled_model.BOUNDS, "float32", -1.0)
        plain = apply_tome(tiny.small_unet(), 0.5)
        check_by_paddle(compile_cpu(apply_tome(tiny.small_unet(), 0.5)), plain, "differs from Paddle's by")

    def test_an_operator_that_is_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ppdiffusers_tome.compilation import operators

        monkeypatch.delitem(operators.OPERATORS, "group_norm")
        model = compile_small_unet()
        with pytest.warns(UserWarning, match="pd_op.group_norm is none of the operators"):
            assert difference(tiny.run_unet(model), tiny.run_unet(tiny.small_unet())) <= 1e-4

    @pytest.mark.parametrize("make", [_Counting, _Embedding])
    def test_what_a_program_would_compute_otherwise_in_a_later_call(
        self, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a process, too, in which nothing is compared, as another one has done it."""
        calls = [paddle.to_tensor([[number, 1]]) for number in (1, 0, 1)]
        expected = [each for plain in [make()] for each in map(plain, calls)]
        monkeypatch.setattr(contents, "_KNOWN", {*contents._KNOWN, __name__.partition(".")[0]})
        for _ in range(2):
            model = compile_cpu(make())
            with pytest.warns(UserWarning, match=BY_PADDLE), paddle.no_grad():
                found = [model(each) for each in calls]
            assert all(np.allclose(one, two, atol=1e-5) for one, two in zip(found, expected, strict=True))

    @pytest.mark.parametrize("is_file", [True, False])
    def test_a_cache_folder_that_cannot_be_written(
        self, is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "elsewhere"
        folder.touch() if is_file else folder.mkdir(mode=0o500)
        if not is_file and os.access(folder, os.W_OK):
            pytest.skip("this user may write anywhere")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        model = compile_small_unet()
        check_same(model, tiny.small_unet())

    @pytest.mark.parametrize("place", ["trace", "program"])
    def test_interrupted_while_compiling(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from ppdiffusers_tome.compilation import program, trace

        def interrupt(*args: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

        model = compile_small_unet()
        before = tiny.snapshot(model)
        with monkeypatch.context() as patch:
            if place == "trace":
                patch.setattr(trace, "put_tensors", interrupt)
            else:
                patch.setattr(program, "Program", interrupt)
            with pytest.raises(KeyboardInterrupt):
                tiny.run_unet(model)
        assert paddle.in_dynamic_mode()
        assert tiny.snapshot(model) == before
        check_same(model, tiny.small_unet())

    def test_objects_and_types_that_no_program_takes(self) -> None:
        model, plain = compile_small_unet(), tiny.small_unet()
        for timestep in (np.int64(500), paddle.to_tensor([500.0], dtype="float64")):
            with pytest.warns(UserWarning, match=BY_PADDLE):
                found = tiny.run_unet(model, timestep=timestep)
            assert difference(found, tiny.run_unet(plain, timestep=timestep)) <= 1e-4
