"""Models that came with ppdiffusers 0.29.1, their own classes: what merging changes in them, and by how much."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import tiny
from patching.contract import first_arguments, needs_of, watch_blocks
from ppdiffusers_tome import ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION
from ppdiffusers_tome.patching.blocks import find_blocks, find_layer
from zoo import Specimen, specimens
from zoo.specimen import Inputs, norms_anywhere

NEWER = {each.name: each for each in specimens() if each.since}
# Of these the latent is a video's.
VIDEOS = ("cogvideox", "cogvideox_rotary", "cogvideox_vctrl", "hunyuan_video", "mochi", "vctrl", "wan", "wan_image")


def parametrize_specimens(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "specimen", [pytest.param(NEWER[name], id=name, marks=needs_of(NEWER[name])) for name in names]
    )


@lru_cache
def build_once(specimen: Specimen) -> tiny.Model:
    return specimen.build()


@pytest.fixture
def model(specimen: Specimen) -> Iterator[tiny.Model]:
    yield build_once(specimen)
    remove_tome(build_once(specimen))


class Attention:
    """Stands in for both of Paddle's: plain, in float32, to which FLUX casts too.

    Of the grid's ``num_tokens`` keys the ``seen`` are seen, all where it is None; a text's stand before or behind them.
    """

    def __init__(self, seen: np.ndarray | None = None, num_tokens: int = 0, *, text_first: bool = True) -> None:
        self.seen, self.num_tokens, self.text_first = seen, num_tokens, text_first

    def __call__(
        self, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, attn_mask: Any = None, **_: Any
    ) -> paddle.Tensor:
        dtype = query.dtype
        query, key, value = (x.astype("float32").transpose([0, 2, 1, 3]) for x in (query, key, value))
        scores = paddle.matmul(query, key, transpose_y=True) / math.sqrt(query.shape[-1])
        if attn_mask is not None:
            seen = attn_mask.dtype == paddle.bool
            scores = scores + ((attn_mask.astype("float32") - 1) * 1e9 if seen else attn_mask.astype("float32"))
        if self.seen is not None and query.shape[2] == key.shape[2] >= self.num_tokens:
            scores = scores + self._bias(key.shape[2])
        return paddle.matmul(F.softmax(scores, axis=-1), value).transpose([0, 2, 1, 3]).astype(dtype)

    def _bias(self, num_keys: int) -> paddle.Tensor:
        others = num_keys - self.num_tokens
        bias = np.zeros(num_keys, "float32")
        start = others if self.text_first else 0
        hidden = np.setdiff1d(np.arange(self.num_tokens), self.seen)
        bias[start + hidden] = -1e9
        return paddle.to_tensor(bias)

    @contextlib.contextmanager
    def put_in_place(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch, norms_anywhere():
            for name in ("scaled_dot_product_attention", "scaled_dot_product_attention_"):
                patch.setattr(F, name, self)
            patch.setattr(paddle, "bfloat16", paddle.float32)
            yield

    @paddle.no_grad()
    def run(self, specimen: Specimen, model: tiny.Model, **inputs: Any) -> np.ndarray:
        with specimen.mended(), self.put_in_place():
            output = specimen.call(model, Inputs(**inputs))
        outputs = output.values() if isinstance(output, dict) else output
        while isinstance(outputs[0] if isinstance(outputs, (list, tuple)) else None, (list, tuple)):
            outputs = [each for several in outputs for each in several]
        return np.concatenate([each.astype("float32").numpy().ravel() for each in outputs])


@paddle.no_grad()
def numbers(specimen: Specimen, model: tiny.Model, **inputs: Any) -> np.ndarray:
    return specimen.run(model, **inputs).numpy()


# Grids of 9x7, 5x11 and 9x13 tokens.
SIZES = [
    dict(height=18, width=14, frames=2, batch=1), dict(height=10, width=22, frames=1, batch=3),
    dict(height=18, width=26, frames=5, batch=2),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=["9x7", "5x11", "9x13"])
@parametrize_specimens(*NEWER)
def test_todo_is_the_model_with_other_keys_masked(specimen: Specimen, model: tiny.Model, size: dict[str, int]) -> None:
    """And nothing else may change: positions, texts, frames, rows of a batch."""
    (section, *_) = find_blocks(model)[0].adapter.points[ATTENTION]
    apply_tome(model, 0.5, method="todo")
    blocks = watch_blocks(model)
    merged = Attention().run(specimen, model, **size)
    tokens = size["height"] // 2 * (size["width"] // 2)
    frames = size["frames"] if specimen.name in VIDEOS else 1
    kept = [np.sort(each.reduction.kept.numpy() - each.layout.prefix)[each.layout.prefix :] for each in blocks]
    assert len(kept) == len(find_blocks(model))
    assert all(np.array_equal(each, kept[0]) for each in kept)
    assert len(kept[0]) == frames * (tokens - tokens // 2)
    others_masked = Attention(kept[0], frames * tokens, text_first=section.text_first)
    expected = others_masked.run(specimen, remove_tome(model), **size)
    assert np.abs(merged - expected).max() <= 1e-6 * np.abs(expected).max()
    assert np.abs(Attention().run(specimen, model, **size) - expected).max() > 1e-4 * np.abs(expected).max()


def trace(specimen: Specimen, **settings: Any) -> tuple[tiny.Model, tiny.Model]:
    """Return a model with ToMe, and the same as a program, which returns no objects with attributes."""
    models = [apply_tome(specimen.build(), 0.5, **settings) for _ in range(2)]
    for model in models:
        model.register_forward_pre_hook(
            lambda layer, inputs, keywords: (inputs, {**keywords, "return_dict": False}), with_kwargs=True
        )
    return models[0], paddle.jit.to_static(models[1], full_graph=True)


# Those that ppdiffusers lets be recorded: HunyuanVideo and Wan call ``view``, which is of dynamic mode alone. Rotary
# embeddings are imported by processors where they apply them, at which recording stumbles; with ToMe they do not.
@pytest.mark.parametrize("settings", [dict(use_rand=True, merge_mlp=True), dict(method="todo")], ids=["tome", "todo"])
@parametrize_specimens("cogvideox", "cogvideox_rotary", "cogvideox_vctrl", "sd3_controlnet", "sd35", "vctrl")
def test_a_program_gives_what_the_model_gives(specimen: Specimen, settings: dict[str, Any]) -> None:
    model, program = trace(specimen, **settings)
    for timestep in (500, 300):
        expected = numbers(specimen, model, timestep=timestep)
        got = numbers(specimen, program, timestep=timestep)
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@parametrize_specimens("flux")
def test_a_grid_that_is_told_by_values_is_refused_while_it_is_recorded(specimen: Specimen) -> None:
    with pytest.raises(ToMeValueError, match=r"a grid given by the values of img_ids .* cannot .* remove_tome before"):
        numbers(specimen, trace(specimen)[1])


def tokens_in(model: tiny.Model, specimen: Specimen, *paths: str) -> dict[str, np.ndarray]:
    with contextlib.ExitStack() as stack:
        seen = {path: stack.enter_context(first_arguments(find_layer(model, path))) for path in paths}
        numbers(specimen, model)
    return {path: each[-1] for path, each in seen.items()}


@parametrize_specimens("hunyuan_video")
def test_blocks_that_refine_the_text_are_left_alone(specimen: Specimen, model: tiny.Model) -> None:
    path = "context_embedder.token_refiner.refiner_blocks.0.attn.to_q"
    before, refiner = tokens_in(model, specimen, path), tiny.snapshot(model.context_embedder.token_refiner)
    apply_tome(model, 0.7, merge_crossattn=True, merge_mlp=True)
    assert not [block for block in find_blocks(model) if block.path.startswith("context_embedder")]
    assert tiny.snapshot(model.context_embedder.token_refiner) == refiner
    assert np.array_equal(tokens_in(model, specimen, path)[path], before[path])
