"""What is refused, what Paddle computes with a warning, and what a user's mistakes end in."""

import sys
import warnings
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from compilation.comparison import BY_PADDLE, check_by_paddle, check_same, needs_openvino
from compilation.programs import compile_small_unet, get_compiled
from ppdiffusers_tome import ToMeError, ToMeTypeError, ToMeValueError, apply_tome, compile_cpu, machine, uncompile_cpu
from ppdiffusers_tome.compilation import api, comparison, contents

needs_3 = needs_openvino[0]


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


def _embed() -> Any:
    """Make a layer that gives zeros for a number whose row has none."""
    layer = paddle.nn.Embedding(2, 4, padding_idx=0)
    layer.weight.set_value(paddle.arange(1, 9, dtype="float32").reshape([2, 4]))
    return layer.eval()


@pytest.mark.skipif(not paddle.__version__.startswith("2."), reason="of Paddle 2.6")
def test_paddle_2_is_refused() -> None:
    with pytest.raises(ToMeValueError, match="needs Paddle 3"):
        compile_cpu(tiny.small_unet(), "float32")


@needs_3
def test_without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setitem(sys.modules, "openvino.opset15", None)
    model = tiny.small_unet()
    with pytest.raises(ToMeValueError, match=r"pip install 'openvino>="):
        compile_cpu(model, "float32")
    assert "forward" not in vars(model)


def _replace_forward(model: Any) -> None:
    model.forward = MethodType(lambda layer, *args, **kwargs: type(layer).forward(layer, *args, **kwargs), model)


def _transpose_weight(model: Any) -> None:
    linear = model.time_embedding.linear_1
    weight = linear.weight.detach()
    del linear.weight
    linear.register_buffer("weight", weight.t().contiguous().t())


@needs_3
@pytest.mark.parametrize("value", [3, None, "unet", paddle.nn.Layer, tiny.scheduler()], ids=str)
def test_what_is_no_model(value: Any) -> None:
    for function in (compile_cpu, uncompile_cpu):
        with pytest.raises(ToMeTypeError, match="pipeline or model"):
            function(value)


@pytest.mark.parametrize("precision", ["float16", None, 32, [], "BFLOAT16"], ids=str)
def test_a_precision_that_is_none(precision: Any) -> None:
    with pytest.raises(ToMeError, match="must be 'auto' or 'float32' or 'bfloat16' or 'int8'"):
        compile_cpu(tiny.small_unet(), precision)


class TestWithPrograms:
    pytestmark = needs_openvino

    @pytest.mark.parametrize(
        ("prepare", "reason"),
        [
            (lambda model: model.to(dtype="float16"), "weights are in paddle.float16; load it in float32"),
            (lambda model: model.train(), "training mode; call its eval"),
            (_replace_forward, "a function in place of its forward"),
            (_transpose_weight, "view of another tensor"),
        ],
    )
    def test_models_that_are_refused_stay_as_they_are(self, prepare: Any, reason: str) -> None:
        pipe = tiny.pipeline(unet=tiny.small_unet())
        prepare(pipe.unet)
        before = tiny.snapshot(pipe.unet)
        with pytest.raises(ToMeValueError, match=rf"^unet cannot be compiled: .*{reason}"):
            compile_cpu(pipe, "float32")
        assert tiny.snapshot(pipe.unet) == before
        assert "forward" not in vars(pipe.vae.decoder), "the decoder was compiled though the UNet cannot be"

    @pytest.mark.parametrize(("instructions", "expected"), [("avx2", "float32"), ("avx2 avx512_bf16", "bfloat16")])
    def test_without_a_precision_it_is_that_of_the_processor(
        self, instructions: str, expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(machine, "read_cpu_info", lambda: f"flags : {instructions} fma")
        assert get_compiled(compile_cpu(tiny.small_unet())).precision == expected

    @pytest.mark.parametrize("precision", ["bfloat16", "int8"])
    def test_a_precision_needs_a_processor(self, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api, "has_precision", lambda name: False)
        with pytest.raises(ToMeValueError, match=f"{precision} needs a processor .* this one is not; give float32"):
            compile_cpu(tiny.small_unet(), precision)

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
        model, plain = compile_small_unet(), tiny.small_unet()
        check_by_paddle(model, plain, r"differs from Paddle's by 0\.00\d+, more than 0\.001")
        check_same(model, plain, timestep=40)  # the same is said once
        assert not cache.exists()

    def test_a_refused_program_leaves_the_call_its_destinations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(comparison.BOUNDS, "float32", -1.0)
        model, plain = (apply_tome(tiny.small_unet(), 0.5) for _ in range(2))
        check_by_paddle(compile_cpu(model, "float32"), plain, "differs from Paddle's by")

    def test_an_operator_that_is_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ppdiffusers_tome.compilation import operators

        monkeypatch.delitem(operators.OPERATORS, "group_norm")
        reason = "pd_op.group_norm is none of the operators"
        check_by_paddle(compile_small_unet(), tiny.small_unet(), reason)

    @pytest.mark.parametrize("make", [_Counting, _embed])
    def test_what_a_program_would_compute_otherwise_in_a_later_call(
        self, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a process, too, in which nothing is compared, as another one has done it."""
        calls = [paddle.to_tensor([[number, 1]]) for number in (1, 0, 1)]
        expected = list(map(make(), calls))
        monkeypatch.setattr(contents, "_KNOWN", {*contents._KNOWN, __name__.partition(".")[0]})
        for _ in range(2):
            model = compile_cpu(make(), "float32")
            with pytest.warns(UserWarning, match=BY_PADDLE), paddle.no_grad():
                found = [model(each) for each in calls]
            assert all(np.allclose(one, two, atol=1e-5) for one, two in zip(found, expected, strict=True))

    @pytest.mark.parametrize("is_file", [True, False])
    def test_a_cache_folder_that_cannot_be_written(self, is_file: bool, cache: Path) -> None:
        cache.parent.touch() if is_file else cache.parent.mkdir(mode=0o500)  # root may write anywhere
        check_same(compile_small_unet(), tiny.small_unet())

    @pytest.mark.parametrize("place", ["twin.put_tensors", "program.Program"])
    def test_interrupted_while_compiling(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*args: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

        model = compile_small_unet()
        before = tiny.snapshot(model)
        with monkeypatch.context() as patch:
            patch.setattr(f"ppdiffusers_tome.compilation.{place}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                tiny.run_unet(model)
        assert paddle.in_dynamic_mode()
        assert tiny.snapshot(model) == before
        check_same(model, tiny.small_unet())

    def test_objects_and_types_that_no_program_takes(self) -> None:
        model, plain = compile_small_unet(), tiny.small_unet()
        check_by_paddle(model, plain, "it gets or returns a int64", timestep=np.int64(500))
        timestep = paddle.to_tensor([500.0], dtype="float64")
        check_by_paddle(model, plain, "it gets tensors in float64; give float32", timestep=timestep)
