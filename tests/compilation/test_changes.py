"""What changes after the first call: weights, layers, processors, settings. Never a stale image."""

import copy
import functools
import pickle
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
from compilation.comparison import Counted, check_by_paddle, check_same, difference, needs_openvino
from compilation.programs import compile_small_unet, get_compiled, list_programs
from patching.helpers import EverySecond
from patching.processors import CASES, Counting
from ppdiffusers_tome import ToMeTypeError, apply_tome, compile_cpu, remove_tome, shared_copy, uncompile_cpu, use_tome
from ppdiffusers_tome.compilation import contents, trace
from ppdiffusers_tome.compilation.arrays import share_memory
from ppdiffusers_tome.tools.recorder import record_merging
from zoo.specimen import attention_anywhere

pytestmark = needs_openvino


def _first_block(model: Any) -> Any:
    return model.down_blocks[0].attentions[0].transformer_blocks[0]


def _set_value(model: Any) -> None:
    weight = _first_block(model).attn1.to_v.weight
    weight.set_value(weight * 3)


@paddle.no_grad()
def _set_row(model: Any) -> None:
    model.conv_in.weight[3] = 1.0


def _set_last_number(model: Any) -> None:
    """In the memory of the weight, which Paddle does not count."""
    share_memory(model.conv_in.weight)[0][-1, -1, -1, -1] = 5.0


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


CHANGES: list[Callable[[Any], None]] = [
    _set_value,
    _set_row,
    _set_last_number,
    lambda model: model.set_state_dict({name: x * 1.1 for name, x in model.state_dict().items()}),
    _flip,
    _train,
    _replace_layer,
    _replace_weight,
    lambda model: setattr(_first_block(model).attn1, "scale", 2.0),
    lambda model: setattr(model.conv_norm_out, "_epsilon", 20.0),
    lambda model: setattr(model, "conv_act", paddle.nn.Tanh()),
]


@pytest.mark.filterwarnings("ignore:.*gradients are recorded")
@pytest.mark.parametrize("ratio", [None, pytest.param(0.5, marks=pytest.mark.sweep)])
def test_weights_layers_and_attributes_that_change(ratio: float | None) -> None:
    """One after the other, as each must be seen beside those before."""
    model, plain = compile_small_unet(), tiny.small_unet()
    for each in (model, plain) if ratio else ():
        apply_tome(each, ratio)
    last = check_same(model, plain)
    for number, change in enumerate(CHANGES):
        change(model)
        change(plain)
        found = check_same(model, plain)
        assert (tiny.run_unet(model) == found).all()
        assert np.abs(found - last).max() > 1e-3, number
        last = found


def test_an_attribute_of_a_class_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """``scale`` of a class is read where an object has none of its own."""
    model, plain = compile_small_unet(), tiny.small_unet()
    for each in (model, plain):
        del vars(_first_block(each).attn1)["scale"]
    monkeypatch.setattr(Attention, "scale", 1.0, raising=False)
    first = check_same(model, plain)
    monkeypatch.setattr(Attention, "scale", 3.0)
    assert np.abs(check_same(model, plain) - first).max() > 1e-3


def _set_processor(model: Any) -> None:
    """With values that a program could not take, which do not matter."""
    processor, nested = Counting(), list[Any]()
    for _ in range(5000):
        nested = [nested]
    processor.nested, processor.kept = nested, paddle.ones([2], "float16")
    _first_block(model).attn1.set_processor(processor)


def _halve(path: str, method: str = "forward") -> Callable[[Any], None]:
    """Return what puts a function in place of a layer's method."""

    def put(model: Any) -> None:
        layer = dict(model.named_sublayers())[path]
        inner = getattr(layer, method)
        setattr(layer, method, lambda *args, **kwargs: inner(*args, **kwargs) * 0.5)

    return put


def _set_made_processor(model: Any) -> None:
    """Of a class made by ``exec``, which is in no module."""
    found: dict[str, Any] = {"AttnProcessor": AttnProcessor}
    exec("class Made(AttnProcessor):\n    def __call__(self, *a, **k): return super().__call__(*a, **k) * 2", found)
    _first_block(model).attn1.set_processor(found["Made"]())


class _Half(paddle.nn.Layer):
    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x * 0.5


def _put_mask_function(model: Any) -> None:
    """On the method that ToMe overrides for masks."""
    attention = _first_block(model).attn1
    inner = attention.prepare_attention_mask

    def add_mask(mask: Any, length: int, batch: int, *args: Any, **kwargs: Any) -> Any:
        mask = inner(mask, length, batch, *args, **kwargs)
        return paddle.linspace(-9, 0, length) if mask is None else mask

    attention.prepare_attention_mask = add_mask


def _put_partial(model: Any) -> None:
    """As accelerate's hooks do."""
    layer = _first_block(model).attn1
    replaced = layer.forward
    halve = functools.partial(lambda run, *given, **named: run(*given, **named) * 0.5, replaced)
    layer.forward = functools.update_wrapper(halve, replaced)


ATTENTION = "down_blocks.0.attentions.0.transformer_blocks.0.attn1"  # the layer that merges
FOREIGN: dict[str, Callable[[Any], None]] = {
    "processor": _set_processor,
    "processor made by exec": _set_made_processor,
    "function on a convolution": _halve("conv_out"),
    "function on attention": _halve(ATTENTION),
    "partial that names what it replaced": _put_partial,
    "method": _halve(ATTENTION, "get_attention_scores"),
    "hook": lambda model: _first_block(model).ff.register_forward_post_hook(lambda *given: given[-1] * 0.5),
    "hook before": lambda model: _first_block(model).attn1.register_forward_pre_hook(
        lambda layer, inputs: (inputs[0] * 0.5, *inputs[1:])
    ),
    "layer": lambda model: setattr(model, "conv_act", _Half()),
    "function for masks": _put_mask_function,
}


@pytest.mark.parametrize("merging", [None, "below", "above"])
@pytest.mark.parametrize("put", FOREIGN.values(), ids=FOREIGN)
def test_code_that_is_not_known_is_run_by_paddle(put: Callable[[Any], None], merging: str | None) -> None:
    """Put there after the first call, or before it, and then below ToMe or above."""
    model, plain = compile_small_unet(), tiny.small_unet()
    unchanged = tiny.run_unet(plain) if merging else check_same(model, plain)
    for each in (model, plain):
        if merging == "below":
            apply_tome(each, 0.5)
        put(each)
        if merging == "above":
            apply_tome(each, 0.5)
    check_by_paddle(model, plain, "of which a program would know nothing")
    assert np.abs(tiny.run_unet(model) - unchanged).max() > 1e-3


@pytest.mark.parametrize(
    ("cls", "name", "kind"),
    [
        (BasicTransformerBlock, "forward", None),
        (BasicTransformerBlock, "forward", functools.partialmethod),
        (Attention, "get_attention_scores", functools.partialmethod),
        (AttnProcessor, "__call__", functools.partialmethod),
    ],
)
def test_a_method_of_a_class_that_is_replaced(cls: Any, name: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a function or what is none; it runs as often as without compiling."""
    model, method, runs = compile_small_unet(), getattr(cls, name), []
    tiny.run_unet(model)

    def run(*args: Any, **kwargs: Any) -> Any:
        runs.append(name)
        return method(*args, **kwargs) * 0.5

    monkeypatch.setattr(cls, name, kind(run) if kind else run)
    reason = "" if kind else "BasicTransformerBlock.forward of compilation.test_changes"
    check_by_paddle(model, tiny.small_unet(), f"{reason}.*of which a program would know nothing")
    assert runs
    assert len(runs) % 2 == 0


def test_the_order_of_sublayers() -> None:
    model, plain = compile_small_unet(), tiny.small_unet()
    first = check_same(model, plain)
    for each in (model, plain):
        each.down_blocks[0].resnets._sub_layers.move_to_end("0")
        each.up_blocks[0].attentions._sub_layers.move_to_end("0")
    assert np.abs(check_same(model, plain) - first).max() > 1e-3


def test_programs_of_weights_that_are_gone_go_too() -> None:
    model = apply_tome(compile_small_unet(), 0.5, end=0.5)
    for factor in (1.0, 2.0, 3.0, 4.0):
        model.conv_out.weight.set_value(model.conv_out.weight * factor)
        tiny.run_unet(model)
    compiled = get_compiled(model)
    assert len(compiled._programs) == len(compiled._layouts) == 2, "the present ones and those before"
    assert len(compiled._keeps_timestep) == 1


def test_programs_of_weights_that_came_back_stay() -> None:
    """As of a LoRA that is taken off, put on and replaced."""
    model = compile_small_unet()
    weight = model.conv_out.weight
    own = weight.clone()
    programs = {}
    for name, factor in (("own", 1.0), ("other", 2.0), ("own", 1.0), ("third", 3.0)):
        weight.set_value(own * factor)
        tiny.run_unet(model)
        programs[name] = list_programs(model)[-1]
    assert list_programs(model) == [programs["own"], programs["third"]]


def test_a_cache_around_the_model_runs_as_often_as_without_compiling() -> None:
    models, caches = (compile_small_unet(), tiny.small_unet()), list[Any]()
    for each in models:
        caches.append(EverySecond(each.forward))
        each.forward = caches[-1].forward
    for timestep in (900, 600, 300, 9):
        assert difference(*(tiny.run_unet(each, timestep=timestep) for each in models)) <= 1e-4
    assert [each.calls for each in caches] == [4, 4]


class _Filling(paddle.nn.Layer):
    def forward(self, x: paddle.Tensor, found: dict[str, Any]) -> paddle.Tensor:
        found["x"] = x
        return x * 2


def test_known_code_that_fills_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its call has run once."""
    monkeypatch.setattr(contents, "_KNOWN", {*contents._KNOWN, __name__.partition(".")[0]})
    model, found = compile_cpu(_Filling().eval(), "float32"), dict[str, Any]()
    with pytest.warns(UserWarning, match="fills one of its arguments"):
        model(paddle.ones([2]), found)
    assert found["x"].tolist() == [1, 1]


@pytest.mark.sweep
def test_ip_adapter_and_its_scale(tmp_path: Path) -> None:
    model, plain = compile_cpu(tiny.unet(), "float32"), tiny.unet()
    check_same(model, plain)
    for each in (model, plain):
        CASES["ip-adapter"].prepare(each, tmp_path)
    with_image = check_same(model, plain, **CASES["ip-adapter"].call)
    for each in (model, plain):
        for processor in each.attn_processors.values():
            if hasattr(processor, "to_k_ip"):
                processor.scale = [0.0] if isinstance(processor.scale, list) else 0.0
    assert np.abs(check_same(model, plain, **CASES["ip-adapter"].call) - with_image).max() > 1e-3
    assert len(list_programs(model)) == 1, "the scale is an input"


def test_a_lora_that_is_scaled_fused_and_unfused(tmp_path: Path) -> None:
    model, plain = compile_cpu(tiny.unet(), "float32"), tiny.unet()
    for each in (model, plain):
        CASES["lora"].prepare(each, tmp_path)
    found = [check_same(model, plain, cross_attention_kwargs={"scale": scale}) for scale in (1.0, 0.3, 0.0)]
    assert difference(found[1], found[0]) > 1e-3
    assert len(list_programs(model)) == 1, "the scale is an input"
    for each in (model, plain):
        each.fuse_lora()
    assert np.abs(check_same(model, plain) - found[0]).max() <= 1e-3
    for each in (model, plain):
        each.unfuse_lora()
    assert np.abs(check_same(model, plain) - found[0]).max() > 1e-3


@attention_anywhere()
def test_processors_of_ppdiffusers(tmp_path: Path) -> None:
    model, plain = compile_small_unet(), tiny.small_unet()
    for each in (model, plain):
        CASES["xformers"].prepare(each, tmp_path)
    check_same(model, plain)
    for each in (model, plain):
        CASES["sliced"].prepare(each, tmp_path)
    check_by_paddle(model, plain, "pd_op.set_value")


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
        for change in (remove_tome, lambda model: apply_tome(model, 0.5)):
            check_same(change(model), change(plain))
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
    model, plain = compile_cpu(apply_tome(tiny.small_unet(), 0.5), "float32"), tiny.small_unet()
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
        compile_cpu(model, "float32")
        tiny.run_unet(model)
    assert tiny.random_states() == states
    uncompile_cpu(model)
    assert tiny.snapshot(model) == before
    assert (tiny.run_unet(model) == expected).all()
    uncompile_cpu(model)


class _Watching:
    """Owns hooks, and is not copied with a model."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, layer: Any, *given: Any) -> None:
        self.seen.append(given[-1])

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("the owner of a hook was copied")


def test_hooks_on_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the model itself run around its programs; Paddle computes a model with hooks inside."""
    model, plain, watching = compile_small_unet(), tiny.small_unet(), _Watching()
    before = model.register_forward_pre_hook(watching.note)
    check_same(model, plain)
    with monkeypatch.context() as patch:
        patch.delattr(trace, "trace_call")
        for _ in range(2):  # a hook for every image, as that which counts a DiT's steps, makes no program again
            hook = model.register_forward_post_hook(watching.note)
            check_same(model, plain)
            hook.remove()
    before.remove()
    assert len(watching.seen) == 5
    model.register_forward_post_hook(watching.note)
    hook = model.conv_in.register_forward_post_hook(watching.note)
    with pytest.warns(UserWarning, match="Conv2D has hooks"):
        tiny.run_unet(model)
    assert len(watching.seen) == 7
    assert all(isinstance(getattr(each, "sample", each), paddle.Tensor) for each in watching.seen[-2:])
    hook.remove()
    get_compiled(model)._warned.clear()  # so that it would be said if Paddle computed it
    check_same(model, plain)


def test_merging_that_is_recorded_is_paddles() -> None:
    model = compile_cpu(apply_tome(tiny.small_unet(), 0.5), "float32")
    tiny.run_unet(model)
    with pytest.warns(UserWarning, match="is being recorded"), record_merging(model) as records:
        tiny.run_unet(model)
    assert records
