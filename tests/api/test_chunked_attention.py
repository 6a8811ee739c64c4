"""Chunked attention: what the plain processor computes, only where that one was, and apart from ToMe."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers import StableDiffusionControlNetPipeline
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, XFormersAttnProcessor

import tiny
from patching.test_gradients import difference, gradients, run_dit, run_unet
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
from ppdiffusers_tome import (
    ChunkedAttnProcessor,
    ToMeTypeError,
    ToMeValueError,
    apply_tome,
    disable_chunked_attention,
    enable_chunked_attention,
    remove_tome,
)

KEEP = paddle.to_tensor(np.arange(512).reshape([2, 256]) % 7 > 1).astype("float32")


def attention_layers(model: tiny.Model) -> list[Attention]:
    return [layer for layer in model.sublayers(include_self=True) if isinstance(layer, Attention)]


def plain(model: Any) -> Any:
    """With the processors that are the default on a CPU, also where a GPU has others."""
    for layer in attention_layers(model):
        layer.set_processor(AttnProcessor())
    return model


def kinds(model: tiny.Model) -> set[type]:
    return {type(layer.processor) for layer in attention_layers(model)}


@paddle.no_grad()
def decode(vae: tiny.Model) -> np.ndarray:
    """A VAE attends to images, with a group norm and a residual."""
    return vae.decode(tiny.latent(2, 6, 10)).sample.numpy()


MODELS = {
    "unet": (tiny.unet, tiny.run_unet),
    "unet-one-image": (tiny.unet, lambda unet: tiny.run_unet(unet, batch=1, height=14, width=22)),
    "unet-three-images": (tiny.unet, lambda unet: tiny.run_unet(unet, batch=3, height=9, width=7)),
    "sdxl": (tiny.sdxl_unet, tiny.run_unet),
    "controlnet": (tiny.controlnet, tiny.run_controlnet),
    "dit": (tiny.dit, tiny.run_dit),
    "vae": (tiny.vae, decode),
    "gligen": (lambda: tiny.unet(**CASES["gligen"].unet), lambda unet: tiny.run_unet(unet, **CASES["gligen"].call)),
    "text-mask": (tiny.unet, lambda unet: tiny.run_unet(unet, **CASES["text-mask"].call)),
    "mask": (lambda: tiny.unet(levels=1), lambda unet: tiny.run_unet(unet, attention_mask=KEEP)),
    "upcast": (lambda: tiny.unet(upcast_attention=True), tiny.run_unet),
}


@pytest.mark.parametrize(
    ("name", "query_rows"),
    [("unet-three-images", 1), *((name, rows) for name in MODELS for rows in (7, 128))],
)
def test_output_is_the_plain_processors(name: str, query_rows: int) -> None:
    build, run = MODELS[name]
    model = plain(build())
    expected = run(model)
    enable_chunked_attention(model, query_rows)
    assert kinds(model) == {ChunkedAttnProcessor}
    assert np.abs(run(model) - expected).max() <= 1e-5
    assert np.array_equal(run(disable_chunked_attention(model)), expected)
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
def test_every_setting_of_an_attention_layer_is_honoured(name: str) -> None:
    layer = tiny.build(Attention, query_dim=32, heads=2, dim_head=4, **LAYERS[name])
    expected = run_layer(layer, name, AttnProcessor())
    for query_rows in (4, 35, 80):
        assert np.abs(run_layer(layer, name, ChunkedAttnProcessor(query_rows)) - expected).max() <= 1e-5


@pytest.mark.parametrize("mask_shape", [(3, 1, 35), (3, 35, 35), (6, 1, 35), (6, 35, 35)])
def test_masks_of_every_shape_that_ppdiffusers_takes(mask_shape: tuple[int, ...]) -> None:
    layer = tiny.build(Attention, query_dim=8, heads=2, dim_head=4)
    x, mask = tiny.array((3, 35, 8), seed=1), 3 * tiny.array(mask_shape, seed=2)
    expected = plain(layer)(x, attention_mask=mask).numpy()
    assert np.abs(expected - layer(x).numpy()).max() > 1e-2
    for query_rows in (4, 80):
        enable_chunked_attention(layer, query_rows)
        assert np.abs(layer(x, attention_mask=mask).numpy() - expected).max() <= 1e-5


@pytest.mark.parametrize(("images", "texts"), [(3, 1), (1, 3)])
def test_one_text_for_several_images_is_broadcast_and_the_other_way(images: int, texts: int) -> None:
    layer = tiny.build(Attention, query_dim=8, heads=2, dim_head=4, cross_attention_dim=12)
    given = tiny.array((images, 35, 8), seed=1), tiny.array((texts, 6, 12), seed=2)
    expected = plain(layer)(*given).numpy()
    assert expected.shape == (3, 35, 8)
    assert np.abs(enable_chunked_attention(layer, 4)(*given).numpy() - expected).max() <= 1e-5


@pytest.mark.parametrize(
    ("batch", "tokens", "query_rows", "expected"),
    [
        (2, 100, 40, [(1, 40)] * 2 + [(1, 20)] + [(1, 40)] * 2 + [(1, 20)]),
        (2, 100, 100, [(1, 100)] * 2),
        (5, 10, 25, [(2, 10), (2, 10), (1, 10)]),
    ],
)
def test_no_more_queries_than_asked_for_at_a_time(
    batch: int, tokens: int, query_rows: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, scores = [], Attention.get_attention_scores

    def note_scores(layer: Attention, query: paddle.Tensor, *rest: Any) -> paddle.Tensor:
        seen.append((query.shape[0], query.shape[2]))
        return scores(layer, query, *rest)

    monkeypatch.setattr(Attention, "get_attention_scores", note_scores)
    layer = plain(tiny.build(Attention, query_dim=8, heads=2, dim_head=4))
    enable_chunked_attention(layer, query_rows)(tiny.array((batch, tokens, 8)))
    assert seen == expected


@pytest.mark.parametrize(("build", "run"), [(tiny.unet, run_unet), (tiny.dit, run_dit)], ids=["unet", "dit"])
@pytest.mark.parametrize("merge", [False, True], ids=["unmerged", "merged"])
def test_gradients_are_the_plain_processors(build: Callable[[], Any], run: Callable[[Any], Any], merge: bool) -> None:
    model = plain(build())
    if merge:
        apply_tome(model, **tiny.MERGE_ALL)
    expected = gradients(model, run(model))
    found = gradients(model, run(enable_chunked_attention(model, 24)))
    assert difference(found, expected) <= 1e-5
    assert max(float(np.abs(gradient).max()) for gradient in expected.values()) > 1e-2


@pytest.mark.parametrize("call", [{}, dict(attention_mask=KEEP)], ids=["", "mask"])
def test_tome_before_and_after(call: dict[str, Any]) -> None:
    levels = 1 if call else 2  # ppdiffusers itself cannot pass one mask to several levels
    before, after = plain(tiny.unet(levels)), plain(tiny.unet(levels))
    unmerged = tiny.run_unet(before, **call)
    expected = tiny.run_unet(apply_tome(before, **tiny.MERGE_ALL), **call)
    assert np.abs(expected - unmerged).max() > 1e-3
    remove_tome(before)

    merged = tiny.run_unet(apply_tome(enable_chunked_attention(before, 24), **tiny.MERGE_ALL), **call)
    assert np.abs(merged - expected).max() <= 1e-5
    enable_chunked_attention(apply_tome(after, **tiny.MERGE_ALL), 24)
    assert np.array_equal(tiny.run_unet(after, **call), merged)

    assert kinds(remove_tome(before)) == {ChunkedAttnProcessor}
    assert np.abs(tiny.run_unet(before, **call) - unmerged).max() <= 1e-5
    assert np.array_equal(tiny.run_unet(disable_chunked_attention(after), **call), expected)
    assert np.array_equal(tiny.run_unet(remove_tome(after), **call), unmerged)


def test_every_denoiser_of_a_pipeline_is_reached_and_nothing_else() -> None:
    controlnets = tiny.multi_controlnet()
    pipe = tiny.pipeline(StableDiffusionControlNetPipeline, controlnet=controlnets)
    for model in (pipe.unet, controlnets, pipe.vae):
        plain(model)
    assert enable_chunked_attention(enable_chunked_attention(pipe, 64), 32) is pipe
    assert kinds(pipe.unet) == kinds(controlnets) == {ChunkedAttnProcessor}
    assert {layer.processor.query_rows for layer in attention_layers(pipe.unet)} == {32}
    assert kinds(pipe.vae) == {AttnProcessor}
    enable_chunked_attention(pipe.vae)
    assert disable_chunked_attention(pipe) is pipe
    assert kinds(pipe.unet) == kinds(controlnets) == kinds(pipe.vae) == {AttnProcessor}
    enable_chunked_attention(pipe.unet.mid_block)
    assert kinds(pipe.unet.mid_block) == {ChunkedAttnProcessor}
    assert kinds(pipe.unet.down_blocks) == {AttnProcessor}


@pytest.mark.parametrize("prepare", [set_counting, set_sliced, set_xformers])
def test_processors_of_the_users_stay(prepare: Callable[[Any, Path], None], tmp_path: Path) -> None:
    unet = plain(tiny.unet())
    prepare(unet, tmp_path)
    own = {id(layer): layer.processor for layer in attention_layers(unet)}
    kept = attention_layers(unet)[0]
    for layer in attention_layers(unet)[1:]:
        layer.set_processor(AttnProcessor())
    enable_chunked_attention(unet)
    assert kept.processor is own[id(kept)]
    assert {type(layer.processor) for layer in attention_layers(unet)[1:]} == {ChunkedAttnProcessor}
    disable_chunked_attention(unet)
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
    enable_chunked_attention(unet, 24)
    assert len(adapters) == 1
    assert kinds(unet) == {ChunkedAttnProcessor, *adapters}
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
    assert np.abs(tiny.run_unet(enable_chunked_attention(unet, 24), **call) - expected).max() <= 5e-5
    load(enable_chunked_attention(after, 24), tmp_path)
    assert np.abs(tiny.run_unet(after, **call) - expected).max() <= 5e-5


def test_lora_is_saved_as_without(tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    unet, saved = plain(tiny.unet()), {}
    load_lora(unet, tmp_path / "lora")
    plain(unet)
    for name in ("plain", "chunked"):
        unet.save_attn_procs(str(tmp_path / name), to_diffusers=False)
        (file,) = (tmp_path / name).iterdir()
        saved[name] = file.read_bytes()
        enable_chunked_attention(unet)
    assert saved["plain"] == saved["chunked"]


def test_ppdiffusers_own_ways_of_setting_processors_go_on() -> None:
    unet = enable_chunked_attention(plain(tiny.unet()))
    listed = unet.attn_processors
    unet.set_attn_processor(dict(listed))
    assert unet.attn_processors == listed
    unet.set_default_attn_processor()
    assert kinds(unet) == {AttnProcessor}
    unet.set_attn_processor(XFormersAttnProcessor())  # the default of newer versions
    assert kinds(enable_chunked_attention(unet)) == {ChunkedAttnProcessor}
    unet.set_attn_processor(ChunkedAttnProcessor(24))
    assert {layer.processor.query_rows for layer in attention_layers(unet)} == {24}


def test_copy_and_pickle() -> None:
    unet = enable_chunked_attention(plain(tiny.unet()), 24)
    twin, pickled = copy.deepcopy(unet), pickle.loads(pickle.dumps(ChunkedAttnProcessor(24)))
    disable_chunked_attention(unet)
    assert kinds(twin) == {type(pickled)} == {ChunkedAttnProcessor}
    assert attention_layers(twin)[0].processor.query_rows == pickled.query_rows == 24


@pytest.mark.parametrize(
    ("rows", "error"), [(0, ToMeValueError), (-1, ToMeValueError), (1.0, ToMeTypeError), (None, ToMeTypeError)]
)
def test_query_rows_that_are_no_count_are_refused(rows: Any, error: type[Exception]) -> None:
    for make in (ChunkedAttnProcessor, lambda rows: enable_chunked_attention(tiny.unet(), rows)):
        with pytest.raises(error, match=f"query_rows={rows} must be a whole number of queries, 1 or more"):
            make(rows)
    assert type(ChunkedAttnProcessor(np.int64(3)).query_rows) is int


def test_nothing_to_replace_is_refused() -> None:
    unet, sentence = tiny.unet(), r"has no attention to compute in chunks: .* its processors are Counting"
    unet.set_attn_processor(Counting())
    for given in (unet, tiny.pipeline(unet=unet)):
        with pytest.raises(ToMeValueError, match=sentence):
            enable_chunked_attention(given)
    assert kinds(unet) == {Counting}
    with pytest.raises(ToMeValueError, match=r"Linear has no attention to compute .* its processors are none"):
        enable_chunked_attention(paddle.nn.Linear(2, 2))
