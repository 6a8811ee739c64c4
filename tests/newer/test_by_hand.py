"""Token merging in the newest families, held to the same done by hand in numpy, token by token."""

from typing import Any

import numpy as np
import paddle
import pytest

from newer.families import FAMILIES, VIDEOS, PlainAttention, arguments, change
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.blocks import find_blocks
from zoo.specimen import TEXT_TOKENS, Inputs

ODD = Inputs(height=10, width=14)
# Paths of the layers that merge for a role, in whatever block has them; ``attn2`` is another self-attention in SD 3.5.
ATTENTION, MLP = ("attn", "attn1"), ("ff", "ffn")


class ByHand:
    """Token merging in one block and of one image, around its layers' own ``forward``.

    One destination stands in the corner of every cell of two rows, two columns and ``st`` frames.
    """

    def __init__(self, block: Any, grid: Grid, names: tuple[str, ...], ratio: float = 0.5, st: int = 1) -> None:
        self.grid, self.ratio, self.st = grid, ratio, st
        self.forward, block.forward = block.forward, self.enter
        # The place of every group's destination, and the group of every token.
        self.places = self.groups = np.zeros(0)
        for name, layer in block.named_children():
            if name in names:
                layer.forward = self.wrap_forward(layer.forward)

    def enter(self, *inputs: Any, **keywords: Any) -> Any:
        tokens = inputs[0] if inputs else keywords["hidden_states"]
        (image,) = tokens.numpy()[:, -self.grid.num_tokens :]
        self.places, self.groups = np.unique(self.owner(image), return_inverse=True)
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
                out = forward(self.merge(inputs[0]), *inputs[1:], **keywords)
            else:
                keywords = {**keywords, "hidden_states": self.merge(keywords["hidden_states"])}
                for name in ("image_rotary_emb", "rotary_emb"):
                    if keywords.get(name) is not None:
                        keywords[name] = self.rows(keywords[name])
                if keywords.get("attention_mask") is not None:  # it hides nothing of the image, whose keys are first
                    less = self.grid.num_tokens - len(self.places)
                    keywords["attention_mask"] = keywords["attention_mask"][..., less:]
                out = forward(**keywords)
            return (self.unmerge(out[0]), *out[1:]) if isinstance(out, tuple) else self.unmerge(out)

        return run_on_merged

    def merge(self, tokens: paddle.Tensor) -> paddle.Tensor:
        others = tokens.shape[1] - self.grid.num_tokens
        image = tokens[0, others:].numpy()
        own = np.stack([image[self.groups == group].mean(axis=0) for group in range(len(self.places))])
        return paddle.concat([tokens[:, :others], paddle.to_tensor(own[None])], axis=1)

    def unmerge(self, tokens: paddle.Tensor) -> paddle.Tensor:
        others = tokens.shape[1] - len(self.places)
        return paddle.concat([tokens[:, :others], paddle.to_tensor(tokens.numpy()[:, others:][:, self.groups])], axis=1)

    def rows(self, rotary: Any) -> Any:
        """Those of a text, and of the image those of destinations."""

        def gather_rows(part: paddle.Tensor) -> paddle.Tensor:
            text = part.shape[-2] - self.grid.num_tokens
            kept = np.concatenate([np.arange(text), text + self.places])
            return paddle.to_tensor(part.numpy()[..., kept, :])

        return gather_rows(rotary) if isinstance(rotary, paddle.Tensor) else tuple(map(gather_rows, rotary))


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *[(name, {}) for name in ("flux", "hunyuan_video", "wan", "cogvideox", "cogvideox_rotary", "sd35")],
    *[(name, dict(merge_mlp=True)) for name in ("flux", "hunyuan_video", "wan", "cogvideox_rotary")],
    *[(name, dict(st=2)) for name in ("hunyuan_video", "wan", "cogvideox_rotary")],
    ("wan", dict(merge_crossattn=True)),
]


def merge_by_hand(
    name: str, model: paddle.nn.Layer, merge_mlp: bool = False, merge_crossattn: bool = False, st: int = 1
) -> list[ByHand]:
    layers = ATTENTION + MLP * merge_mlp + ("attn2",) * (merge_crossattn or name == "sd35")
    grid = Grid(ODD.height // 2, ODD.width // 2, ODD.frames if name in VIDEOS else 1)
    return [ByHand(each.layer, grid, layers, st=st) for each in find_blocks(model)]


@pytest.mark.parametrize(("name", "settings"), [each for each in SETTINGS if each[0] in FAMILIES], ids=str)
def test_each_image_is_what_merging_by_hand_gives(name: str, settings: dict[str, Any]) -> None:
    specimen, plain = FAMILIES[name], PlainAttention()
    given, keywords = arguments(specimen, ODD)
    if "txt_ids" in keywords:
        # Pipelines give the text no positions; here it has some, or nobody would see that they are used.
        keywords["txt_ids"] += paddle.arange(TEXT_TOKENS, dtype="float32").unsqueeze(1)
    merged = plain.call(specimen, apply_tome(specimen.build(), 0.5, use_rand=False, **settings), given, keywords)

    reference = specimen.build()
    hands = merge_by_hand(name, reference, **settings)
    places = []
    for number in range(ODD.batch):

        def take_image(value: Any, number: int = number) -> Any:
            is_batch = isinstance(value, paddle.Tensor) and value.shape[0] == ODD.batch
            return value[number : number + 1] if is_batch else value

        own = {key: take_image(each) for key, each in keywords.items()}
        expected = plain.call(specimen, reference, tuple(map(take_image, given)), own)
        assert change(merged[number : number + 1], expected) <= 1e-5
        places.append([hand.places for hand in hands])
    assert len(hands) > 1
    for one, other in zip(*places, strict=True):  # or one image's rows would do for all
        assert not np.array_equal(one, other)
