"""CPU attention: what the plain processor computes, only where that one was, and apart from ToMe."""

import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers import StableDiffusionControlNetPipeline
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, XFormersAttnProcessor

import tiny
from patching.test_gradients import difference, gradients, run_dit, run_unet
from patching.test_group_sizes import cosine_scores
from patching.test_processors import (
    CASES,
    Counting,
    fuse_lora,
    load_ip_adapter,
    load_lora,
    set_counting,
    set_sliced,
    set_xformers,
)
from ppdiffusers_tome import CPUAttnProcessor, ToMeValueError, apply_tome, disable_cpu_kernels, enable_cpu_kernels
from ppdiffusers_tome.cpu import attention, kernel

KEEP = paddle.to_tensor(np.arange(512).reshape([2, 256]) % 7 > 1).astype("float32")


def attention_layers(model: tiny.Model) -> list[Attention]:
    return [layer for layer in model.sublayers(include_self=True) if isinstance(layer, Attention)]


def plain(model: Any) -> Any:
    """With the processors that are the default on a CPU, also where a GPU has others."""
    for layer in attention_layers(model):
        layer.set_processor(AttnProcessor())
    return model


def set_kernel(model: Any) -> Any:
    """Attention alone by the kernel."""
    for layer in attention_layers(model):
        layer.set_processor(CPUAttnProcessor())
    return model


def kinds(model: tiny.Model) -> set[type]:
    return {type(layer.processor) for layer in attention_layers(model)}


def differ(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to values above 1."""
    return float(np.abs(found - expected).max() / max(1, np.abs(expected).max()))


@paddle.no_grad()
def run_eagerly(layer: Any, *args: Any, **given: Any) -> np.ndarray:
    return layer(*args, **given).numpy()


MODELS = {
    "unet": (tiny.unet, tiny.run_unet),
    "controlnet": (tiny.controlnet, tiny.run_controlnet),
    "dit": (tiny.dit, tiny.run_dit),
    "gligen": (lambda: tiny.unet(**CASES["gligen"].unet), lambda unet: tiny.run_unet(unet, **CASES["gligen"].call)),
    "text-mask": (tiny.unet, lambda unet: tiny.run_unet(unet, **CASES["text-mask"].call)),
    "mask": (lambda: tiny.unet(levels=1), lambda unet: tiny.run_unet(unet, attention_mask=KEEP)),
}


def note_answers(patch: pytest.MonkeyPatch, place: Any, name: str) -> list[tuple[int, ...]]:
    """Return a list that fills with the shapes for which a kernel is asked; it has to answer."""
    shapes: list[tuple[int, ...]] = []
    compute = getattr(kernel, name)

    def note(x: paddle.Tensor, *rest: Any, **given: Any) -> paddle.Tensor:
        shapes.append(tuple(x.shape))
        result = compute(x, *rest, **given)
        assert result is not None
        return result

    patch.setattr(place, name, note)
    return shapes


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of queries."""
    return note_answers(monkeypatch, attention, "compute_attention")


@pytest.mark.parametrize("name", MODELS)
def test_output_is_the_plain_processors(name: str, computed: list[tuple[int, ...]]) -> None:
    build, run = MODELS[name]
    model = plain(build())
    expected, keys = run(model), list(model.state_dict())
    enable_cpu_kernels(model)
    assert kinds(model) == {CPUAttnProcessor}
    assert differ(run(model), expected) <= 5e-6
    assert computed
    assert list(model.state_dict()) == keys
    assert np.array_equal(run(disable_cpu_kernels(model)), expected)
    assert kinds(model) == {AttnProcessor}


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


def run_layer(layer: Attention, name: str, processor: Any) -> np.ndarray:
    layer.set_processor(processor)
    x = tiny.array((3, 32, 5, 7) if name in ("image", "spatial-norm") else (3, 35, 32), seed=1)
    given: dict[str, Any] = {}
    if "cross_attention_dim" in LAYERS[name]:
        given["encoder_hidden_states"] = tiny.array((3, 6, 12), seed=2)
    if name == "spatial-norm":
        given["temb"] = tiny.array((3, 4, 5, 7), seed=3)
    with paddle.no_grad():
        return layer(x, **given).numpy()


@pytest.mark.parametrize("name", LAYERS)
def test_every_setting_of_an_attention_layer_is_honoured(name: str, computed: list[tuple[int, ...]]) -> None:
    layer = tiny.build(Attention, query_dim=32, heads=2, dim_head=4, **LAYERS[name])
    expected = run_layer(layer, name, AttnProcessor())
    assert differ(run_layer(layer, name, CPUAttnProcessor()), expected) <= 2e-6
    assert len(computed) == 1


@pytest.mark.parametrize("mask_shape", [(3, 1, 35), (3, 35, 35), (6, 1, 35), (6, 35, 35)])
def test_masks_of_every_shape_that_ppdiffusers_takes(
    mask_shape: tuple[int, ...], computed: list[tuple[int, ...]]
) -> None:
    layer = tiny.build(Attention, query_dim=8, heads=2, dim_head=4)
    x, mask = tiny.array((3, 35, 8), seed=1), 3 * tiny.array(mask_shape, seed=2)
    expected = run_eagerly(plain(layer), x, attention_mask=mask)
    assert np.abs(expected - run_eagerly(layer, x)).max() > 1e-2
    assert differ(run_eagerly(enable_cpu_kernels(layer), x, attention_mask=mask), expected) <= 2e-6
    assert len(computed) == (mask_shape[1] == 1)  # others differ by query


@pytest.mark.parametrize("lowest", [-1e4, float(np.finfo(np.float32).min), -np.inf])
def test_masked_keys_have_no_part(lowest: float, computed: list[tuple[int, ...]]) -> None:
    layer = enable_cpu_kernels(plain(tiny.build(Attention, query_dim=8, heads=2, dim_head=4)))
    x, mask = tiny.array((2, 35, 8), seed=1), np.zeros((2, 1, 35), np.float32)
    mask[:, :, 20:] = lowest
    given = dict(encoder_hidden_states=x, attention_mask=paddle.to_tensor(mask))
    expected = run_eagerly(layer, x, encoder_hidden_states=x[:, :20])
    assert differ(run_eagerly(layer, x, **given), expected) <= 2e-6
    assert len(computed) == 2


@pytest.mark.parametrize("dim_head", [1, 3, 40, 41, 64, 160, 512])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_of_every_size_and_few_and_many_keys(
    dim_head: int, masked: bool, computed: list[tuple[int, ...]]
) -> None:
    layer = tiny.build(Attention, query_dim=8, heads=3, dim_head=dim_head, cross_attention_dim=12)
    for keys in (1, 77, 700):
        given = dict(encoder_hidden_states=tiny.array((2, keys, 12), seed=2))
        if masked:
            given["attention_mask"] = tiny.array((2, 1, keys), seed=3)
        x = tiny.array((2, 301, 8), seed=1)
        expected = run_eagerly(plain(layer), x, **given)
        assert differ(run_eagerly(enable_cpu_kernels(layer), x, **given), expected) <= 2e-6
    assert len(computed) == 3


@pytest.mark.parametrize(("images", "texts"), [(3, 1), (1, 3)])
def test_one_text_for_several_images_is_broadcast_and_the_other_way(images: int, texts: int) -> None:
    layer = tiny.build(Attention, query_dim=8, heads=2, dim_head=4, cross_attention_dim=12)
    given = tiny.array((images, 35, 8), seed=1), tiny.array((texts, 6, 12), seed=2)
    expected = run_eagerly(plain(layer), *given)
    assert expected.shape == (3, 35, 8)
    assert differ(run_eagerly(enable_cpu_kernels(layer), *given), expected) <= 2e-6


def test_scores_and_types_of_another_kind_are_computed_plainly(computed: list[tuple[int, ...]]) -> None:
    layer, x = plain(tiny.build(Attention, query_dim=8, heads=2, dim_head=4)), tiny.array((2, 35, 8), seed=1)
    layer.get_attention_scores = MethodType(cosine_scores, layer)
    expected = run_eagerly(layer, x)
    assert np.array_equal(run_eagerly(enable_cpu_kernels(layer), x), expected)
    del layer.get_attention_scores
    expected = run_eagerly(plain(layer.to(dtype="float64")), x.astype("float64"))
    assert np.array_equal(run_eagerly(enable_cpu_kernels(layer), x.astype("float64")), expected)
    assert computed == []


FAULTS = {
    "missing": ("onnxruntime", None, "import of onnxruntime halted"),
    "broken": ("onnxruntime.InferenceSession", None, "not callable"),
}


@pytest.mark.parametrize(("place", "value", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_onnxruntime_is_one_line_and_the_plain_result(
    place: str, value: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unet = plain(tiny.unet())
    expected = tiny.run_unet(unet)
    kernel._make_session.cache_clear()
    kernel._advise.cache_clear()
    if place == "onnxruntime":
        monkeypatch.setitem(sys.modules, place, value)
    else:
        monkeypatch.setattr(place, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert np.array_equal(tiny.run_unet(enable_cpu_kernels(unet)), expected)
        assert np.array_equal(tiny.run_unet(unet), expected)
    kernel._make_session.cache_clear()
    kernel._advise.cache_clear()
    (line,) = (str(each.message) for each in caught if "ToMe" in str(each.message))
    assert words in line
    assert "plain attention and Paddle's convolutions run" in line
    assert "pip install 'onnxruntime>=1.20'" in line


def test_layers_share_sessions_with_as_many_threads_as_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    kernel._make_session.cache_clear()
    unet = set_kernel(tiny.unet())
    tiny.run_unet(unet)
    (heads,) = {layer.heads for layer in attention_layers(unet)}
    assert len(attention_layers(unet)) > 1
    session = kernel._make_session("com.microsoft.MultiHeadAttention", 3, (("num_heads", heads),), 3)
    assert kernel._make_session.cache_info().currsize == 1  # it was there
    options = session.get_session_options()
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    kernel._make_session.cache_clear()


@pytest.mark.parametrize("call", [{}, dict(attention_mask=KEEP)], ids=["", "mask"])
@pytest.mark.parametrize("method", ["tome", "todo", "keys"])
def test_every_method_merges_as_with_the_plain_processor(
    method: str, call: dict[str, Any], computed: list[tuple[int, ...]]
) -> None:
    levels = 1 if call else 2  # ppdiffusers itself cannot pass one mask to several levels
    unet = apply_tome(plain(tiny.unet(levels)), 0.5, method=method)
    expected = tiny.run_unet(unet, **call)
    assert np.abs(tiny.run_unet(enable_cpu_kernels(unet), **call) - expected).max() <= 1e-5
    assert len(computed) == len(attention_layers(unet))


def test_two_threads_generate_at_once() -> None:
    unets = [enable_cpu_kernels(plain(tiny.unet())) for _ in range(2)]
    calls = [lambda unet=unet, n=n: tiny.run_unet(unet, timestep=100 + 800 * n) for n, unet in enumerate(unets)]
    expected = [call() for call in calls]
    assert np.abs(expected[0] - expected[1]).max() > 1e-2
    with ThreadPoolExecutor(2) as pool:
        found = [[future.result() for future in each] for each in [[pool.submit(c) for c in calls] for _ in range(5)]]
    for images in found:
        assert all(map(np.array_equal, images, expected))


@pytest.mark.parametrize("full_graph", [False, True])
def test_traced_programs_have_plain_operators(full_graph: bool) -> None:
    if not full_graph and paddle.__version__.startswith("2."):
        pytest.skip("Paddle 2.6 traces bytecode otherwise")
    layer = enable_cpu_kernels(plain(tiny.build(Attention, query_dim=8, heads=2, dim_head=4)))
    x = tiny.array((2, 35, 8))
    expected = run_eagerly(layer, x)
    found = run_eagerly(paddle.jit.to_static(layer, full_graph=full_graph), x)
    assert differ(found, expected) <= 2e-6


@pytest.mark.parametrize(("build", "run"), [(tiny.unet, run_unet), (tiny.dit, run_dit)], ids=["unet", "dit"])
@pytest.mark.parametrize("merge", [False, True], ids=["unmerged", "merged"])
def test_gradients_are_the_plain_processors(build: Callable[[], Any], run: Callable[[Any], Any], merge: bool) -> None:
    model = plain(build())
    if merge:
        apply_tome(model, **tiny.MERGE_ALL)
    expected = gradients(model, run(model))
    found = gradients(model, run(enable_cpu_kernels(model)))
    assert difference(found, expected) <= 1e-5
    assert max(float(np.abs(gradient).max()) for gradient in expected.values()) > 1e-2


def test_every_model_of_a_pipeline_is_reached_and_a_part_alone() -> None:
    controlnets = tiny.multi_controlnet()
    pipe = tiny.pipeline(StableDiffusionControlNetPipeline, controlnet=controlnets)
    for model in (pipe.unet, controlnets, pipe.vae):
        plain(model)
    assert enable_cpu_kernels(enable_cpu_kernels(pipe)) is pipe
    assert kinds(pipe.unet) == kinds(controlnets) == kinds(pipe.vae) == {CPUAttnProcessor}
    assert disable_cpu_kernels(pipe) is pipe
    assert kinds(pipe.unet) == kinds(controlnets) == kinds(pipe.vae) == {AttnProcessor}
    enable_cpu_kernels(pipe.unet.mid_block)
    assert kinds(pipe.unet.mid_block) == {CPUAttnProcessor}
    assert kinds(pipe.unet.down_blocks) == {AttnProcessor}


@pytest.mark.parametrize("prepare", [set_counting, set_sliced, set_xformers])
def test_processors_of_the_users_stay(prepare: Callable[[Any, Path], None], tmp_path: Path) -> None:
    unet = plain(tiny.unet())
    prepare(unet, tmp_path)
    own = {id(layer): layer.processor for layer in attention_layers(unet)}
    kept = attention_layers(unet)[0]
    for layer in attention_layers(unet)[1:]:
        layer.set_processor(AttnProcessor())
    enable_cpu_kernels(unet)
    assert kept.processor is own[id(kept)]
    assert {type(layer.processor) for layer in attention_layers(unet)[1:]} == {CPUAttnProcessor}
    disable_cpu_kernels(unet)
    assert kept.processor is own[id(kept)]
    assert {type(layer.processor) for layer in attention_layers(unet)[1:]} == {AttnProcessor}


def test_ip_adapter_stays_and_works(tmp_path: Path) -> None:
    unet, call = tiny.unet(), CASES["ip-adapter"].call
    load_ip_adapter(unet, tmp_path)
    adapters = {kind for kind in kinds(unet) if issubclass(kind, paddle.nn.Layer)}
    for layer in attention_layers(unet):
        if type(layer.processor) not in adapters:
            layer.set_processor(AttnProcessor())
    expected = tiny.run_unet(unet, **call)
    enable_cpu_kernels(unet)
    assert len(adapters) == 1
    assert kinds(unet) == {CPUAttnProcessor, *adapters}
    assert np.abs(tiny.run_unet(unet, **call) - expected).max() <= 1e-5


@pytest.mark.parametrize("load", [load_lora, fuse_lora])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_lora_works_before_and_after(load: Callable[[Any, Path], None], scale: float, tmp_path: Path) -> None:
    # LoRA weights of this size make values of which float32 holds a digit less.
    call = dict(cross_attention_kwargs=dict(scale=scale))
    unet, after = plain(tiny.unet()), plain(tiny.unet())
    without = tiny.run_unet(unet)
    load(unet, tmp_path)
    plain(unet)
    expected = tiny.run_unet(unet, **call)
    assert np.abs(expected - without).max() > 1e-3
    assert np.abs(tiny.run_unet(enable_cpu_kernels(unet), **call) - expected).max() <= 1e-4
    load(enable_cpu_kernels(after), tmp_path)
    assert np.abs(tiny.run_unet(after, **call) - expected).max() <= 1e-4


def test_ppdiffusers_own_ways_of_setting_processors_go_on() -> None:
    unet = enable_cpu_kernels(plain(tiny.unet()))
    listed = unet.attn_processors
    unet.set_attn_processor(dict(listed))
    assert unet.attn_processors == listed
    unet.set_default_attn_processor()
    assert kinds(unet) == {AttnProcessor}
    unet.set_attn_processor(XFormersAttnProcessor())  # the default of newer versions
    assert kinds(enable_cpu_kernels(unet)) == {CPUAttnProcessor}
    unet.set_attn_processor(CPUAttnProcessor())
    assert kinds(unet) == {CPUAttnProcessor}
    assert kinds(disable_cpu_kernels(unet)) == {AttnProcessor}


@pytest.mark.parametrize("kind", [AttnProcessor, XFormersAttnProcessor])
def test_the_very_processors_come_back(kind: type) -> None:
    unet = tiny.unet(levels=1)
    for layer in attention_layers(unet):
        layer.set_processor(kind())
    before = [layer.processor for layer in attention_layers(unet)]
    disable_cpu_kernels(enable_cpu_kernels(enable_cpu_kernels(unet)))
    assert all(layer.processor is one for layer, one in zip(attention_layers(unet), before, strict=True))


@pytest.mark.parametrize("kind", [AttnProcessor, XFormersAttnProcessor])
def test_a_function_on_the_class_of_processors_stays(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = plain(tiny.build(Attention, query_dim=8, heads=2, dim_head=4)), tiny.array((2, 35, 8), seed=1)
    layer.set_processor(kind())
    monkeypatch.setattr(kind, "__call__", lambda self, attn, hidden_states, **_: hidden_states + 1)
    with pytest.raises(ToMeValueError, match="has nothing that onnxruntime could compute"):
        enable_cpu_kernels(layer)
    assert np.array_equal(run_eagerly(layer, x), (x + 1).numpy())


def test_nothing_to_replace_is_refused() -> None:
    layer = tiny.build(Attention, query_dim=8, heads=2, dim_head=4)
    layer.set_processor(Counting())
    for given in (layer, paddle.nn.Linear(2, 2)):
        with pytest.raises(ToMeValueError, match=r"has nothing that onnxruntime could compute: .* nor a Conv2D"):
            enable_cpu_kernels(given)
    assert kinds(layer) == {Counting}
