"""What changes after the first call: weights, layers, processors, settings. Never a stale image."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.models.attention import BasicTransformerBlock
from ppdiffusers.models.attention_processor import AttnProcessor

import tiny
from compilation.compiled import BY_PADDLE, Counted, check_same, compiled, difference, needs_openvino, programs_alone
from patching.test_processors import load_ip_adapter, load_lora, math_attention, set_counting, set_sliced, set_xformers
from ppdiffusers_tome import (
    ToMeTypeError,
    ToMeValueError,
    apply_tome,
    compile_cpu,
    disable_cpu_kernels,
    enable_cpu_kernels,
    remove_tome,
    shared_copy,
    uncompile_cpu,
    use_tome,
)
from ppdiffusers_tome.tools.recorder import record_merging

pytestmark = needs_openvino


class _Scaled(AttnProcessor):
    """Scales what it computes, by attributes."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.factors = [1.0]

    def __call__(self, *args: Any, **kwargs: Any) -> paddle.Tensor:
        return super().__call__(*args, **kwargs) * self.factor * self.factors[0]


def _first_block(model: Any) -> Any:
    return model.down_blocks[0].attentions[0].transformer_blocks[0]


def _set_value(model: Any) -> None:
    weight = _first_block(model).attn1.to_v.weight
    weight.set_value(weight * 3)


@paddle.no_grad()
def _set_row(model: Any) -> None:
    model.conv_in.weight[3] = 1.0


@paddle.no_grad()
def _set_number(model: Any) -> None:
    """One of those that are not read, as a row of a large weight."""
    model.conv_in.weight[0, 0, 0, 1] = 5.0


def _set_state_dict(model: Any) -> None:
    model.set_state_dict({name: x * 1.1 for name, x in model.state_dict().items()})


def _train(model: Any) -> None:
    with paddle.set_grad_enabled(True):
        model(tiny.latent(), 500, tiny.text()).sample.square().mean().backward()
        paddle.optimizer.SGD(0.5, parameters=model.parameters()).step()
    model.clear_gradients()


def _replace_layer(model: Any) -> None:
    linear = copy.deepcopy(_first_block(model).attn1.to_q)
    linear.weight.set_value(tiny.array((8, 8)))
    _first_block(model).attn1.to_q = linear


def _set_processor(model: Any) -> None:
    _first_block(model).attn1.set_processor(_Scaled())


def _scale_processor(model: Any) -> None:
    _first_block(model).attn1.processor.factor = 0.25


def _scale_in_place(model: Any) -> None:
    _first_block(model).attn1.processor.factors[0] = 3.0


def _set_function(model: Any) -> None:
    inner = _first_block(model).ff.forward
    _first_block(model).ff.forward = lambda *args, **kwargs: inner(*args, **kwargs) * 0.5


CHANGES: list[Callable[[Any], None]] = [
    _set_value, _set_row, _set_number, _set_state_dict, _train, _replace_layer, _set_processor, _scale_processor,
    _scale_in_place, _set_function,
]  # fmt: skip


def test_weights_layers_and_processors_that_change() -> None:
    """One after the other, as each must be seen beside those before."""
    model, plain, last = compiled(), tiny.small_unet(), None
    check_same(model, plain)
    for change in CHANGES:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradients are recorded")
            change(model)
            change(plain)
        found = check_same(model, plain)
        assert (tiny.run_unet(model) == found).all()
        if change is not _set_processor:  # its factor is 1
            assert last is None or np.abs(found - last).max() > 1e-3, change.__name__
        last = found


def test_a_method_of_a_class_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled()
    tiny.run_unet(model)
    forward = BasicTransformerBlock.forward
    monkeypatch.setattr(BasicTransformerBlock, "forward", lambda self, x, **kwargs: forward(self, 2 * x, **kwargs))
    check_same(model, tiny.small_unet())


@paddle.no_grad()
def _run_with_image(model: Any) -> np.ndarray:
    given = dict(added_cond_kwargs=dict(image_embeds=tiny.array((2, 6), seed=8)))
    return tiny.run_unet(model, **given)


@pytest.mark.sweep
def test_ip_adapter_and_its_scale(tmp_path: Path) -> None:
    model, plain = compile_cpu(tiny.unet()), tiny.unet()
    check_same(model, plain)
    for each in (model, plain):
        load_ip_adapter(each, tmp_path)
    with_image = check_same(model, plain, _run_with_image)
    for each in (model, plain):
        for processor in each.attn_processors.values():
            if hasattr(processor, "to_k_ip"):
                processor.scale = [0.0] if isinstance(processor.scale, list) else 0.0
    assert np.abs(check_same(model, plain, _run_with_image) - with_image).max() > 1e-3


def test_lora_loaded_fused_and_unfused(tmp_path: Path) -> None:
    model, plain = compile_cpu(tiny.unet()), tiny.unet()
    for each in (model, plain):
        load_lora(each, tmp_path)
    loaded = check_same(model, plain)
    for each in (model, plain):
        each.fuse_lora()
    assert np.abs(check_same(model, plain) - loaded).max() <= 1e-3
    for each in (model, plain):
        each.unfuse_lora()
    assert np.abs(check_same(model, plain) - loaded).max() > 1e-3


def test_processors_of_ppdiffusers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddle.nn.functional, "scaled_dot_product_attention_", math_attention(), raising=False)
    model, plain = compiled(), tiny.small_unet()
    set_xformers(model, tmp_path)
    set_xformers(plain, tmp_path)
    check_same(model, plain)
    set_sliced(model, tmp_path)  # which writes into a tensor
    with pytest.warns(UserWarning, match=BY_PADDLE):
        found = tiny.run_unet(model)
    assert np.abs(found - tiny.run_unet(plain)).max() <= 1e-4


def test_a_processor_that_keeps_something_of_every_call(tmp_path: Path) -> None:
    """As attention maps that a pipeline reads: Paddle computes every call."""
    model, plain = compiled(), tiny.small_unet()
    set_counting(model, tmp_path)
    set_counting(plain, tmp_path)
    with pytest.warns(UserWarning, match="keeps something"):
        found = [tiny.run_unet(model, timestep=each) for each in (500, 40)]
    expected = [tiny.run_unet(plain, timestep=each) for each in (500, 40)]
    assert difference(np.array(found), np.array(expected)) <= 1e-4


@pytest.mark.parametrize("begin", [0, None])
def test_code_that_counts_its_calls(begin: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As caches of steps do, in place of a method of the class: one program would be the first step for ever."""
    forward = BasicTransformerBlock.forward

    def scale_every_other(self: Any, x: paddle.Tensor, **kwargs: Any) -> paddle.Tensor:
        self.count = getattr(self, "count", 0) + 1
        return forward(self, x, **kwargs) * (1 + self.count % 2)

    monkeypatch.setattr(BasicTransformerBlock, "forward", scale_every_other)
    if begin is not None:
        monkeypatch.setattr(BasicTransformerBlock, "count", begin, raising=False)
    expected = [tiny.run_unet(plain) for plain in [tiny.small_unet()] for _ in range(3)]
    for model in (compiled(), compiled()):  # of the second one nothing is compared, if that of the first was noted
        with pytest.warns(UserWarning, match="sets its count in every call"):
            found = [tiny.run_unet(model) for _ in range(3)]
        assert difference(np.array(found), np.array(expected)) <= 1e-4


def test_settings_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model, plain = compiled(), tiny.small_unet()

    def take_turns() -> None:
        for settings in (None, dict(ratio=0.5)):
            with programs_alone():
                for each in (model, plain):
                    remove_tome(each) if settings is None else apply_tome(each, **settings)
            check_same(model, plain)
        with use_tome(model, 0.7), use_tome(plain, 0.7):
            check_same(model, plain)

    assert counted.during(take_turns) == 3 + 3  # those of ``plain``, and each program's first
    assert counted.during(take_turns) == 3, "a setting that comes back is compared or computed again"
    uncompile_cpu(model)
    assert [name for name in vars(model) if "compiled" in name] == []
    tiny.run_unet(remove_tome(model))
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    "settings",
    [dict(ratio=0.5, cache=0.5), dict(ratio=0.5, reuse_steps=2), dict(ratio=(0.6, 0.2)), dict(ratio=0.5, end=0.5)],
    ids=str,
)
def test_settings_that_depend_on_the_step_are_refused(settings: dict[str, Any]) -> None:
    model, plain = compile_cpu(apply_tome(tiny.small_unet(), 0.5)), apply_tome(tiny.small_unet(), 0.5)
    with pytest.raises(ToMeValueError, match="do not go together with"):
        apply_tome(model, **settings)
    check_same(model, plain)


def test_gradients_and_training() -> None:
    model, plain = compiled(), tiny.small_unet()
    check_same(model, plain)
    gradients = []
    with pytest.warns(UserWarning, match="gradients are recorded"):  # noqa: PT031
        for each in (model, plain):
            latent = tiny.latent()
            latent.stop_gradient = False
            each(latent, 500, tiny.text()).sample.square().mean().backward()
            gradients.append(latent.grad.numpy())
    assert difference(gradients[0], gradients[1]) <= 1e-4
    model.train()
    with pytest.warns(UserWarning, match="training mode"):
        tiny.run_unet(model)
    model.eval()
    check_same(model, plain)


def test_copies() -> None:
    model, plain = compile_cpu(apply_tome(tiny.small_unet(), 0.5)), tiny.small_unet()
    unmerged = tiny.run_unet(plain)
    tiny.run_unet(model)
    copied = copy.deepcopy(model)
    _set_value(copied)
    _set_value(plain)
    apply_tome(plain, 0.5)
    check_same(copied, plain)
    check_same(model, apply_tome(tiny.small_unet(), 0.5))
    other = shared_copy(model)
    assert np.abs(tiny.run_unet(remove_tome(other)) - unmerged).max() <= 1e-5
    with pytest.raises(ToMeTypeError, match="uncompile_cpu first"):
        pickle.dumps(remove_tome(model))
    uncompile_cpu(model)
    assert (tiny.run_unet(pickle.loads(pickle.dumps(model))) == unmerged).all()


def test_uncompiling_restores_the_model() -> None:
    model = tiny.small_unet()
    expected, before = tiny.run_unet(model), tiny.snapshot(model)
    states = tiny.random_states()
    for _ in range(2):
        compile_cpu(model)
        tiny.run_unet(model)
    assert tiny.random_states() == states
    uncompile_cpu(model)
    assert tiny.snapshot(model) == before
    assert (tiny.run_unet(model) == expected).all()
    uncompile_cpu(model)


def test_hooks_on_layers() -> None:
    """Those of the model itself run around its programs; Paddle computes a model with hooks inside."""
    model, plain = compiled(), tiny.small_unet()
    seen: list[Any] = []
    model.register_forward_post_hook(lambda layer, inputs, output: seen.append(output))
    check_same(model, plain)
    assert len(seen) == 1
    handle = model.conv_in.register_forward_post_hook(lambda layer, inputs, output: seen.append(output))
    with pytest.warns(UserWarning, match="hooks are on layers inside"):
        tiny.run_unet(model)
    assert len(seen) == 3
    assert all(isinstance(getattr(each, "sample", each), paddle.Tensor) for each in seen)
    handle.remove()
    check_same(model, plain)


def test_a_hook_for_every_image_makes_no_program_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a DiT, by which its pipeline's steps are counted."""
    from ppdiffusers_tome.compilation import trace

    model, seen = compiled(), []
    tiny.run_unet(model)
    monkeypatch.delattr(trace, "trace_call")
    for _ in range(2):
        handle = model.register_forward_post_hook(lambda *given: seen.append(given))
        with programs_alone():
            tiny.run_unet(model)
        handle.remove()
    assert len(seen) == 2


def test_merging_that_is_recorded_is_paddles() -> None:
    model = compile_cpu(apply_tome(tiny.small_unet(), 0.5))
    tiny.run_unet(model)
    with pytest.warns(UserWarning, match="is being recorded"), record_merging(model) as records:
        tiny.run_unet(model)
    assert records


def test_kernels_of_the_cpu_beside_it() -> None:
    model, plain = compiled(), tiny.small_unet()
    for switch in (enable_cpu_kernels, disable_cpu_kernels):
        switch(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = tiny.run_unet(model)
        assert np.abs(found - tiny.run_unet(plain)).max() <= 1e-4
    assert not [each for each in caught if BY_PADDLE in str(each.message)]
