"""Token merging in the families of a newer ppdiffusers, on stand-ins, held to the same done by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from future_models.stand_ins import FAMILIES, Attention, Family, FluxSingleTransformerBlock, Model, Rotary
from patching.contract import ToMeContract
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.chosen_keys import select_key_tokens
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.partition import regular_partition
from ppdiffusers_tome.patching.adapters.adapter import FIRST
from zoo.specimen import TEXT_TOKENS, Inputs

ODD = Inputs(height=10, width=14)


def numbers(family: Family) -> Any:
    def run(model: Model, **given: Any) -> np.ndarray:
        outputs = family.run(model, Inputs(**given))
        return np.concatenate([each.reshape(len(each), -1) for each in outputs], axis=1)

    return staticmethod(run)


for _family in FAMILIES.values():
    _name = "Test" + "".join(part.title() for part in _family.name.split("_"))
    globals()[_name] = type(
        _name,
        (ToMeContract,),
        {
            "build": staticmethod(_family.build),
            "run": numbers(_family),
        },
    )


def case(family: Family, *others: Any, id: str = "") -> Any:
    return pytest.param(family, *others, id=family.name + id)


def grid_of(family: Family, inputs: Inputs) -> Grid:
    return Grid(inputs.height // 2, inputs.width // 2, inputs.frames if family.video else 1)


def blocks(model: Model) -> list[Any]:
    return [layer for layer in model.sublayers() if type(layer).__name__.endswith("Block")]


def attentions(model: Model) -> Iterator[Attention]:
    return (layer for layer in model.sublayers() if isinstance(layer, Attention) and not layer.cross)


def change(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The largest difference, relative to the largest number."""
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(one, other, strict=True))


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class ByHand:
    """Token merging in one block, in numpy, token by token and image by image, around its layers' own ``forward``.

    One destination stands in the corner of every cell of two rows, two columns and ``st`` frames.
    """

    def __init__(self, block: Any, grid: Grid, ratio: float, st: int, merging: list[Any]) -> None:
        self.grid, self.ratio, self.st = grid, ratio, st
        self.forward, block.forward = block.forward, self.enter
        # Of each image, the place of every group's destination and the group of every token.
        self.places: list[np.ndarray] = []
        self.groups: list[np.ndarray] = []
        for layer in merging:
            layer.forward = self.wrap_forward(layer.forward)

    def enter(self, *inputs: Any, **keywords: Any) -> Any:
        tokens = inputs[0] if inputs else keywords["hidden_states"]
        owners = [self.owner(image) for image in tokens.numpy()[:, -self.grid.num_tokens :]]
        self.places, self.groups = zip(*(np.unique(owner, return_inverse=True) for owner in owners), strict=True)
        return self.forward(*inputs, **keywords)

    def owner(self, tokens: np.ndarray) -> np.ndarray:
        """Of every token the one that it merges into, maybe itself."""
        grid, st, every = self.grid, self.st, np.arange(len(tokens))
        place = np.unravel_index(every, (grid.frames, grid.height, grid.width))
        sides = ((grid.frames, st), (grid.height, 2), (grid.width, 2))
        corner = np.all(
            [(at % each == 0) & (at < side // each * each) for at, (side, each) in zip(place, sides, strict=True)],
            axis=0,
        )
        window = np.minimum(place[0] // st, grid.frames // st - 1)
        unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        cosine = np.where(corner & (window[:, None] == window), unit @ unit.T, -2)
        likeness, owner = np.where(corner, -3, cosine.max(axis=1)), every.copy()
        for ranked in np.split(every, grid.frames) if st == 1 else [every]:
            most = ranked[np.argsort(-likeness[ranked])][: int(len(ranked) * self.ratio)]
            owner[most] = cosine[most].argmax(axis=1)
        return owner

    def wrap_forward(self, forward: Any) -> Any:
        def run_on_merged(*inputs: Any, **keywords: Any) -> Any:
            if inputs:
                out = forward(self.merge(inputs[0]), *inputs[1:])
            else:
                keywords = {**keywords, "hidden_states": self.merge(keywords["hidden_states"])}
                for name in ("image_rotary_emb", "rotary_emb"):
                    if keywords.get(name) is not None:
                        keywords[name] = self.rows(keywords[name])
                if "attention_mask" in keywords:  # it hides nothing of the image, whose keys are first
                    keywords["attention_mask"] = keywords["attention_mask"][..., self.grid.num_tokens - self.left :]
                out = forward(**keywords)
            return (self.unmerge(out[0]), *out[1:]) if isinstance(out, tuple) else self.unmerge(out)

        return run_on_merged

    @property
    def left(self) -> int:
        return len(self.places[0])

    def merge(self, tokens: paddle.Tensor) -> paddle.Tensor:
        others = tokens.shape[1] - self.grid.num_tokens
        own = [
            [image[others:][groups == group].mean(axis=0) for group in range(self.left)]
            for image, groups in zip(tokens.numpy(), self.groups, strict=True)
        ]
        return paddle.concat([tokens[:, :others], paddle.to_tensor(np.stack(own))], axis=1)

    def unmerge(self, tokens: paddle.Tensor) -> paddle.Tensor:
        others = tokens.shape[1] - self.left
        own = [image[others:][groups] for image, groups in zip(tokens.numpy(), self.groups, strict=True)]
        return paddle.concat([tokens[:, :others], paddle.to_tensor(np.stack(own))], axis=1)

    def rows(self, rotary: Rotary) -> Rotary:
        """Those of a text, and of the image those of each image's destinations, ``[batch, 1, left, channels]``."""

        def gather_rows(part: paddle.Tensor) -> paddle.Tensor:
            rows = part.numpy().reshape([-1, part.shape[-1]])
            text = len(rows) - self.grid.num_tokens
            each = [np.concatenate([rows[:text], rows[text:][places]]) for places in self.places]
            return paddle.to_tensor(np.stack(each)).unsqueeze(1)

        return gather_rows(rotary) if isinstance(rotary, paddle.Tensor) else tuple(map(gather_rows, rotary))


def merge_by_hand(model: Model, grid: Grid, ratio: float = 0.5, st: int = 1, **roles: bool) -> list[ByHand]:
    def merges(name: str, layer: Any) -> bool:
        if not isinstance(layer, Attention):
            return name in ("ff", "ffn") and roles.get("merge_mlp", False)
        return roles.get("merge_crossattn", False) if layer.cross else True

    return [
        ByHand(block, grid, ratio, st, [layer for name, layer in block.named_children() if merges(name, layer)])
        for block in blocks(model)
    ]


def cases_by_hand() -> Iterator[Any]:
    for family in FAMILIES.values():
        yield case(family, {}, {})
        yield case(family, {}, {"merge_mlp": True}, id="-mlp")
        # Positions may be in the tokens themselves; then nothing is turned, and no norms are needed.
        yield case(family, {"rotary": False}, {}, id="-no-rotary")
        yield case(family, {"rotary": False, "norms": False}, {}, id="-no-norms")
        if family.video:
            yield case(family, {}, {"st": 2}, id="-frames")
    yield case(FAMILIES["wan"], {}, {"merge_crossattn": True}, id="-crossattn")


@pytest.mark.parametrize(("family", "options", "settings"), cases_by_hand())
def test_the_output_is_that_of_merging_by_hand(family: Family, options: Any, settings: Any) -> None:
    model, reference = family.build(**options), family.build(**options)
    hands = merge_by_hand(reference, grid_of(family, ODD), **settings)
    expected = family.run(reference, ODD)
    assert change(family.run(apply_tome(model, 0.5, use_rand=False, **settings), ODD), expected) <= 1e-6
    for hand in hands:  # or one image's rows would do for all
        assert not np.array_equal(*hand.places)


@pytest.mark.parametrize("family", map(case, FAMILIES.values()))
@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_todo_is_the_model_whose_other_keys_are_hidden(family: Family, ratio: float) -> None:
    model, reference = family.build(), family.build()
    grid = grid_of(family, ODD)
    frame = Grid(grid.height, grid.width)
    kept = select_key_tokens(regular_partition(frame, 2, 2), frame.num_merged(ratio), frames=grid.frames).numpy()
    hidden = np.setdiff1d(np.arange(grid.num_tokens), kept)
    for block in blocks(reference):
        for attention in block.children():
            if isinstance(attention, Attention) and not attention.cross:
                attention.hidden_keys = hidden + (TEXT_TOKENS if attention.text == FIRST else 0)
    expected = family.run(reference, ODD)
    assert change(family.run(apply_tome(model, ratio, method="todo", use_rand=False), ODD), expected) <= 1e-6


@pytest.mark.parametrize("family", [case(family) for family in FAMILIES.values() if family.text])
@pytest.mark.parametrize("method", ["tome", "todo", "keys"])
def test_a_text_that_sees_no_image_stays_what_it_is(family: Family, method: str) -> None:
    """So its tokens never merge, and their positions are their own."""
    behind, before = slice(TEXT_TOKENS, None), slice(-TEXT_TOKENS)
    model = family.build()
    for attention in attentions(model):
        if attention.text:
            attention.hidden_keys = behind if attention.text == FIRST else before
    image, text = family.run(model)
    apply_tome(model, 0.5, method=method)
    for block in blocks(model):
        if isinstance(block, FluxSingleTransformerBlock):  # the text is within what merges, and comes last of it
            block.attn.hidden_keys = before
    merged_image, merged_text = family.run(model)
    assert change([merged_text], [text]) <= 1e-6
    if method == "tome":
        assert change([merged_image], [image]) >= 1e-3


@pytest.mark.parametrize("name", [family.name for family in FAMILIES.values() if family.takes_mask])
@pytest.mark.parametrize("blocks", [{"dual": 2, "single": 0}, {"dual": 0, "single": 2}], ids=["dual", "single"])
def test_equal_tokens_lose_nothing_with_sizes(name: str, blocks: Any) -> None:
    family = FAMILIES[name]
    model = family.build(**blocks)
    model.rope.share = 2
    plain = family.run(model, tiny.EqualCells())
    assert change(family.run(apply_tome(model, 0.6, method="keys"), tiny.EqualCells()), plain) <= 1e-6
    assert change(family.run(apply_tome(model, 0.6), tiny.EqualCells()), plain) >= 1e-3
