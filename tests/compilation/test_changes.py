"""What changes after the first call: weights, layers, processors, settings. Never a stale image."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.models.attention import BasicTransformerBlock
from ppdiffusers.models.attention_processor import Attention, AttnProcessor
from ppdiffusers.pipelines.stable_diffusion.pipeline_stable_diffusion_sag import CrossAttnStoreProcessor

import tiny
from compilation.comparison import (
    BY_PADDLE,
    Counted,
    check_by_paddle,
    check_same,
    compile_small_unet,
    difference,
    needs_openvino,
    programs_alone,
)
from patching.test_processors import load_ip_adapter, load_lora, set_sliced, set_xformers
from ppdiffusers_tome import (
    ToMeTypeError,
    apply_tome,
    compile_cpu,
    remove_tome,
    shared_copy,
    uncompile_cpu,
    use_tome,
)
from ppdiffusers_tome.compilation import contents
from ppdiffusers_tome.compilation.twin import COMPILED
from ppdiffusers_tome.merging.arrays import share_memory
from ppdiffusers_tome.tools.recorder import record_merging
from zoo.specimen import attention_anywhere

pytestmark = needs_openvino


class _Scaled(AttnProcessor):
    """A user's processor."""

    def __call__(self, *args: Any, **kwargs: Any) -> paddle.Tensor:
        return super().__call__(*args, **kwargs) * 0.25


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
    model.conv_in.weight[0, 0, 0, 1] = 5.0


def _set_last_number(model: Any) -> None:
    """In the memory of the weight, which Paddle does not count."""
    share_memory(model.conv_in.weight)[0][-1, -1, -1, -1] = 5.0


def _set_state_dict(model: Any) -> None:
    model.set_state_dict({name: x * 1.1 for name, x in model.state_dict().items()})


def _load_new_channels(model: Any) -> None:
    state = {name: x.clone() for name, x in model.state_dict().items()}
    state["conv_in.weight"][:, 2:] = 0.5
    model.set_state_dict(state)


def _train_new_channels(model: Any) -> None:
    weight = model.conv_in.weight
    optimizer = paddle.optimizer.Adam(0.5, parameters=[weight])
    with paddle.set_grad_enabled(True):
        weight[:, 2:].square().sum().backward()
    optimizer.step()
    optimizer.clear_grad()


def _flip(model: Any) -> None:
    """The same numbers in another order."""
    weight = _first_block(model).attn1.to_q.weight
    weight.set_value(weight.flip(0))


def _train(model: Any) -> None:
    with paddle.set_grad_enabled(True):
        model(tiny.latent(), 500, tiny.text()).sample.square().mean().backward()
        paddle.optimizer.SGD(0.5, parameters=model.parameters()).step()
    model.clear_gradients()


def _replace_layer(model: Any) -> None:
    linear = copy.deepcopy(_first_block(model).attn1.to_q)
    linear.weight.set_value(tiny.array((8, 8)))
    _first_block(model).attn1.to_q = linear


def _replace_weight(model: Any) -> None:
    _first_block(model).attn1.to_k.weight = paddle.create_parameter(
        [8, 8], "float32", default_initializer=paddle.nn.initializer.Assign(tiny.array((8, 8), seed=9))
    )


def _scale_attention(model: Any) -> None:
    _first_block(model).attn1.scale = 2.0


def _rescale_output(model: Any) -> None:
    model.down_blocks[0].resnets[0].output_scale_factor = 0.5


def _set_eps(model: Any) -> None:
    model.conv_norm_out._epsilon = 20.0


def _replace_activation(model: Any) -> None:
    model.conv_act = paddle.nn.Tanh()


CHANGES: list[Callable[[Any], None]] = [
    _set_value, _set_row, _set_number, _set_last_number, _set_state_dict, _load_new_channels, _train_new_channels,
    _flip, _train, _replace_layer, _replace_weight, _scale_attention, _rescale_output, _set_eps, _replace_activation,
]  # fmt: skip


@pytest.mark.parametrize("ratio", [None, pytest.param(0.5, marks=pytest.mark.sweep)])
def test_weights_layers_and_attributes_that_change(ratio: float | None) -> None:
    """One after the other, as each must be seen beside those before."""
    model, plain, last = compile_small_unet(), tiny.small_unet(), None
    for each in (model, plain) if ratio else ():
        apply_tome(each, ratio)
    check_same(model, plain)
    for change in CHANGES:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradients are recorded")
            change(model)
            change(plain)
        found = check_same(model, plain)
        assert (tiny.run_unet(model) == found).all()
        assert last is None or np.abs(found - last).max() > 1e-3, change.__name__
        last = found


def test_an_attribute_of_a_class_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """``num_heads`` of a class is read where an object has none of its own."""
    model, plain = compile_small_unet(), tiny.small_unet()
    for each in (model, plain):
        del vars(_first_block(each).attn1)["scale"]
    monkeypatch.setattr(Attention, "scale", 1.0, raising=False)
    first = check_same(model, plain)
    monkeypatch.setattr(Attention, "scale", 3.0)
    assert np.abs(check_same(model, plain) - first).max() > 1e-3


def _set_processor(model: Any) -> None:
    _first_block(model).attn1.set_processor(_Scaled())


def _put_function(model: Any) -> None:
    inner = _first_block(model).ff.forward
    _first_block(model).ff.forward = lambda *args, **kwargs: inner(*args, **kwargs) * 0.5


def _put_function_on_a_convolution(model: Any) -> None:
    inner = model.conv_out.forward
    model.conv_out.forward = lambda *args, **kwargs: inner(*args, **kwargs) * 0.5


def _put_function_on_attention(model: Any) -> None:
    """On the layer that merges."""
    inner = _first_block(model).attn1.forward
    _first_block(model).attn1.forward = lambda *args, **kwargs: inner(*args, **kwargs) * 0.5


def _put_method(model: Any) -> None:
    attention = _first_block(model).attn1
    inner = attention.get_attention_scores
    attention.get_attention_scores = lambda *args: inner(*args) * 0.5


def _put_hook(model: Any) -> None:
    _first_block(model).ff.register_forward_post_hook(lambda layer, inputs, output: output * 0.5)


def _put_hook_before(model: Any) -> None:
    _first_block(model).attn1.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 0.5, *inputs[1:]))


class _Half(paddle.nn.Layer):
    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.eval()

    def forward(self, x: paddle.Tensor, *args: Any) -> paddle.Tensor:
        return self.base(x) * 0.5


def _put_layer(model: Any) -> None:
    _first_block(model).attn1.to_v = _Half(_first_block(model).attn1.to_v)


def _put_mask_function(model: Any) -> None:
    """On the method that ToMe overrides for masks."""
    attention = _first_block(model).attn1
    inner = attention.prepare_attention_mask

    def add_mask(mask: Any, length: int, batch: int, *args: Any, **kwargs: Any) -> Any:
        mask = inner(mask, length, batch, *args, **kwargs)
        return paddle.linspace(-9, 0, length) if mask is None else mask

    attention.prepare_attention_mask = add_mask


FOREIGN: list[Callable[[Any], None]] = [
    _set_processor, _put_function, _put_function_on_a_convolution, _put_function_on_attention, _put_method, _put_hook,
    _put_hook_before, _put_layer, _put_mask_function,
]  # fmt: skip


@pytest.mark.parametrize(("ratio", "is_first"), [(None, True), ("before", True), ("after", True), (None, False)])
@pytest.mark.parametrize("put", FOREIGN)
def test_code_that_is_not_known_is_run_by_paddle(put: Callable[[Any], None], ratio: str | None, is_first: bool) -> None:
    """Put there before the first call or after it, below ToMe or above; as often as without compiling."""
    model, plain = compile_small_unet(), tiny.small_unet()
    unchanged = tiny.run_unet(plain) if is_first else check_same(model, plain)
    for each in (model, plain):
        if ratio == "before":
            apply_tome(each, 0.5)
        put(each)
        if ratio == "after":
            apply_tome(each, 0.5)
    check_by_paddle(model, plain, "of which a program would know nothing")
    assert np.abs(tiny.run_unet(model) - unchanged).max() > 1e-3


def test_known_code_again_after_other_code() -> None:
    model, plain = compile_small_unet(), tiny.small_unet()
    _set_processor(model)
    with pytest.warns(UserWarning, match=BY_PADDLE):
        tiny.run_unet(model)
    model.set_attn_processor(AttnProcessor())
    check_same(model, plain)


def test_a_method_of_a_class_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compile_small_unet()
    tiny.run_unet(model)
    forward = BasicTransformerBlock.forward
    monkeypatch.setattr(BasicTransformerBlock, "forward", lambda self, x, **kwargs: forward(self, 2 * x, **kwargs))
    check_by_paddle(model, tiny.small_unet(), "BasicTransformerBlock.forward of compilation.test_changes")


@pytest.mark.parametrize("name", ["forward", "get_attention_scores", "__call__"])
def test_what_is_no_function_on_a_class(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial is called as a method is, without the layer."""
    model, count = compile_small_unet(), [0]
    tiny.run_unet(model)
    cls: Any = AttnProcessor if name == "__call__" else BasicTransformerBlock if name == "forward" else Attention
    method = getattr(cls, name)

    def run(kept: Any, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return method(*args, **kwargs) * 0.5

    class Method(functools.partialmethod):  # type: ignore[type-arg]
        pass

    monkeypatch.setattr(cls, name, Method(lambda *args, **kwargs: run(None, *args, **kwargs)))
    check_by_paddle(model, tiny.small_unet(), "of which a program would know nothing")
    assert count[0] % 2 == 0
    assert count[0]


def test_the_order_of_sublayers() -> None:
    model, plain = compile_small_unet(), tiny.small_unet()
    first = check_same(model, plain)
    for each in (model, plain):
        each.down_blocks[0].resnets._sub_layers.move_to_end("0")
        each.up_blocks[0].attentions._sub_layers.move_to_end("0")
    assert np.abs(check_same(model, plain) - first).max() > 1e-3


def test_code_made_by_exec() -> None:
    found: dict[str, Any] = {"AttnProcessor": AttnProcessor}
    exec("class Made(AttnProcessor):\n    def __call__(self, *a, **k): return super().__call__(*a, **k) * 2", found)
    models = compile_small_unet(), tiny.small_unet()
    for each in models:
        _first_block(each).attn1.set_processor(found["Made"]())
    check_by_paddle(*models, "of which a program would know nothing")


def test_hooks_and_their_owners_are_not_copied() -> None:
    class Owner:
        lock = threading.Lock()

        def note(self, *_: Any) -> None:
            with self.lock:
                pass

        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("the owner of a hook was copied")

    model, owner = compile_small_unet(), Owner()
    model.register_forward_post_hook(owner.note)
    model.register_forward_pre_hook(owner.note)
    check_same(model, tiny.small_unet())


def test_tensors_of_other_code_are_not_the_models() -> None:
    model = tiny.small_unet()
    processor = _Scaled()
    processor.kept = paddle.ones([2], "float16")
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    processor.nested = nested
    _first_block(model).attn1.set_processor(processor)
    plain = copy.copy(model)
    assert plain is not model
    compile_cpu(model)
    with pytest.warns(UserWarning, match=BY_PADDLE):
        tiny.run_unet(model)


def test_programs_of_weights_that_are_gone_go_too() -> None:
    model = compile_small_unet()
    for factor in (1.0, 2.0, 3.0, 4.0):
        model.conv_out.weight.set_value(model.conv_out.weight * factor)
        tiny.run_unet(model)
    assert len(vars(model)[COMPILED]._programs) == 2, "the present ones and those before"


class _Controlled(AttnProcessor):
    """Acts from its second step on, as the controllers of Prompt-to-Prompt do."""

    def __init__(self, count: dict[str, int]) -> None:
        super().__init__()
        self.count = count

    def __call__(self, *args: Any, **kwargs: Any) -> paddle.Tensor:
        self.count["steps"] += 1
        return super().__call__(*args, **kwargs) * (3 if self.count["steps"] > 2 else 1)


class _EverySecond:
    """As TeaCache and the like: some calls return the output of the one before."""

    def __init__(self, model: Any) -> None:
        self.inner, self.count, self.output = model.forward, 0, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        self.output = self.inner(*args, **kwargs) if self.count % 2 else self.output
        return self.output


@pytest.mark.parametrize("kind", ["controller", "cache"])
def test_code_that_counts_runs_as_often_as_without_compiling(kind: str) -> None:
    model, plain = compile_small_unet(), tiny.small_unet()
    for each in (model, plain):
        if kind == "cache":
            each.forward = _EverySecond(each)
        else:
            _first_block(each).attn1.set_processor(_Controlled({"steps": 0}))
    for timestep in (900, 600, 300, 9):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert difference(*(tiny.run_unet(each, timestep=timestep) for each in (model, plain))) <= 1e-4
    for each in (model, plain):
        count = each.forward.count if kind == "cache" else _first_block(each).attn1.processor.count["steps"]
        assert count == 4


class _Reference:
    """Fills an argument, as reference attention does (Zero123++)."""

    def __init__(self, name: str) -> None:
        self.name, self.inner = name, AttnProcessor()

    def __call__(self, attn: Any, x: paddle.Tensor, *args: Any, refs: Any, **kwargs: Any) -> Any:
        refs[self.name] = x
        return self.inner(attn, x, *args, **kwargs)


def test_an_argument_that_is_filled() -> None:
    model, refs = compile_small_unet(), dict[str, Any]()
    model.set_attn_processor({name: _Reference(name) for name in model.attn_processors})
    with pytest.warns(UserWarning, match=BY_PADDLE):
        tiny.run_unet(model, cross_attention_kwargs={"refs": refs})
    assert len(refs) == 6


class _Filling(paddle.nn.Layer):
    def forward(self, x: paddle.Tensor, found: dict[str, Any]) -> paddle.Tensor:
        found["x"] = x
        return x * 2


def test_known_code_that_fills_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its call has run once."""
    monkeypatch.setattr(contents, "_KNOWN", {*contents._KNOWN, __name__.partition(".")[0]})
    model, found = compile_cpu(_Filling().eval()), dict[str, Any]()
    with pytest.warns(UserWarning, match="fills one of its arguments"):
        model(paddle.ones([2]), found)
    assert found["x"].tolist() == [1, 1]


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
    assert len(vars(model)[COMPILED]._programs) == 1, "the scale is an input"


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


@attention_anywhere()
def test_processors_of_ppdiffusers(tmp_path: Path) -> None:
    model, plain = compile_small_unet(), tiny.small_unet()
    set_xformers(model, tmp_path)
    set_xformers(plain, tmp_path)
    check_same(model, plain)
    set_sliced(model, tmp_path)  # which writes into a tensor
    with pytest.warns(UserWarning, match=BY_PADDLE):
        found = tiny.run_unet(model)
    assert np.abs(found - tiny.run_unet(plain)).max() <= 1e-4


def test_a_processor_of_ppdiffusers_that_keeps_attention_maps() -> None:
    """Its pipeline reads them after every step."""
    model, plain = compile_small_unet(), tiny.small_unet()
    for each in (model, plain):
        _first_block(each).attn1.set_processor(CrossAttnStoreProcessor())
    check_by_paddle(model, plain, "CrossAttnStoreProcessor sets its attention_probs in every call")
    maps = [_first_block(each).attn1.processor.attention_probs.numpy() for each in (model, plain)]
    assert np.array_equal(*maps)


def test_settings_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model, plain = compile_small_unet(), tiny.small_unet()

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


def test_gradients_and_training() -> None:
    model, plain = compile_small_unet(), tiny.small_unet()
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
    model, plain = compile_small_unet(), tiny.small_unet()
    seen: list[Any] = []
    model.register_forward_post_hook(lambda layer, inputs, output: seen.append(output))
    check_same(model, plain)
    assert len(seen) == 1
    handle = model.conv_in.register_forward_post_hook(lambda layer, inputs, output: seen.append(output))
    with pytest.warns(UserWarning, match="Conv2D has hooks"):
        tiny.run_unet(model)
    assert len(seen) == 3
    assert all(isinstance(getattr(each, "sample", each), paddle.Tensor) for each in seen)
    handle.remove()
    check_same(model, plain)


def test_a_hook_for_every_image_makes_no_program_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a DiT, by which its pipeline's steps are counted."""
    from ppdiffusers_tome.compilation import trace

    model, seen = compile_small_unet(), []
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
