"""What token merging changes in the newest families, and by how much.

They keep the contract, as all others do in `denoisers/test_specimens.py`.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.nn import Layer

import tiny
from newer.families import FAMILIES, VIDEOS, PlainAttention, arguments, change, numbers, parametrize_specimens
from patching.contract import contract_of
from patching.helpers import first_arguments, watch_blocks
from ppdiffusers_tome import ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION
from ppdiffusers_tome.patching.blocks import find_blocks
from zoo import Specimen

for _specimen in FAMILIES.values():
    _tests = contract_of(_specimen)
    globals()[_tests.__name__] = _tests


@lru_cache
def build_once(specimen: Specimen) -> Layer:
    return specimen.build()


@pytest.fixture
def model(specimen: Specimen) -> Iterator[Layer]:
    yield build_once(specimen)
    remove_tome(build_once(specimen))


# Grids of 9x7, 5x11 and 9x13 tokens.
SIZES = [
    dict(height=18, width=14, frames=2, batch=1), dict(height=10, width=22, frames=1, batch=3),
    dict(height=18, width=26, frames=5, batch=2),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=["9x7", "5x11", "9x13"])
@pytest.mark.parametrize("specimen", [pytest.param(each, id=name) for name, each in FAMILIES.items()])
def test_todo_is_the_model_with_other_keys_masked(specimen: Specimen, model: Layer, size: dict[str, int]) -> None:
    """And nothing else may change: positions, texts, frames, rows of a batch."""
    (section, *_) = find_blocks(model)[0].adapter.points[ATTENTION]
    apply_tome(model, 0.5, method="todo")
    with watch_blocks(model) as blocks:
        merged = PlainAttention().run(specimen, model, **size)
    tokens = size["height"] // 2 * (size["width"] // 2)
    frames = size["frames"] if specimen.name in VIDEOS else 1
    kept = [np.sort(each.reduction.kept.numpy() - each.layout.prefix)[each.layout.prefix :] for each in blocks]
    assert len(kept) == len(find_blocks(model))
    assert all(np.array_equal(each, kept[0]) for each in kept)
    assert len(kept[0]) == frames * (tokens - tokens // 2)
    others_masked = PlainAttention(kept[0], frames * tokens, text_first=section.text_first)
    expected = others_masked.run(specimen, remove_tome(model), **size)
    assert change(merged, expected) <= 1e-6
    assert change(PlainAttention().run(specimen, model, **size), expected) > 1e-4


@pytest.mark.parametrize("name", [name for name in ("flux", "hunyuan_video") if name in FAMILIES])
def test_equal_tokens_lose_nothing_with_sizes(name: str) -> None:
    """Of cells whose tokens and positions are equal, those that are left weigh what the whole cell does."""
    specimen, plain = FAMILIES[name], PlainAttention()
    model = specimen.build()

    def give_cells_one_position(layer: Any, inputs: Any, rotary: Any) -> Any:
        text = rotary[0].shape[0] % 64  # of FLUX
        rows, columns = np.divmod(np.arange(64), 8)
        corners = rows // 2 * 16 + columns // 2 * 2
        frames = [np.arange(text), *(text + 64 * frame + corners for frame in range(rotary[0].shape[0] // 64))]
        return tuple(each[paddle.to_tensor(np.concatenate(frames))] for each in rotary)

    (model.pos_embed if name == "flux" else model.rope).register_forward_post_hook(give_cells_one_position)
    called = arguments(specimen, tiny.EqualCells())
    expected = plain.call(specimen, model, *called)
    assert change(plain.call(specimen, apply_tome(model, 0.6, method="keys"), *called), expected) <= 1e-5
    assert change(plain.call(specimen, apply_tome(model, 0.6), *called), expected) >= 1e-3


def trace(specimen: Specimen, **settings: Any) -> tuple[Layer, Layer]:
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
        assert change(numbers(specimen, program, timestep=timestep), expected) <= 1e-5


@parametrize_specimens("flux")
def test_a_grid_that_is_told_by_values_is_refused_while_it_is_recorded(specimen: Specimen) -> None:
    with pytest.raises(ToMeValueError, match=r"a grid given by the values of img_ids .* cannot .* remove_tome before"):
        numbers(specimen, trace(specimen)[1])


@parametrize_specimens("hunyuan_video")
def test_blocks_that_refine_the_text_are_left_alone(specimen: Specimen, model: Layer) -> None:
    refiner = model.context_embedder.token_refiner

    def read_tokens() -> np.ndarray:
        with first_arguments(refiner.refiner_blocks[0].attn.to_q) as seen:
            numbers(specimen, model)
        return seen[-1]

    tokens, before = read_tokens(), tiny.snapshot(refiner)
    apply_tome(model, 0.7, merge_crossattn=True, merge_mlp=True)
    assert not [block for block in find_blocks(model) if block.path.startswith("context_embedder")]
    assert tiny.snapshot(refiner) == before
    assert np.array_equal(read_tokens(), tokens)
