"""Methods of the literature that are not in the package, as prototypes beside those that are: PSNR alone, no speed.

    python docs/measured/tried_methods.py --model bundled-dit --seeds 0 1

Every prototype is a processor of self-attention that works on plain assignments of tokens to groups, with numpy's
matching, so that what is measured is the idea and not an implementation. Each is compared with ``tome``, or with what
else is named, picture by picture, from the same noise. Run it from the repository, with the package installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle.nn import functional as F
from tqdm import tqdm

from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
from ppdiffusers_tome.cpu.process import keep_freed_memory, let_mkl_use_avx2
from ppdiffusers_tome.tools.demo_model import PROMPTS
from ppdiffusers_tome.tools.generation import sampling
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.generation.settings import choose_guidance_scale
from ppdiffusers_tome.tools.measure.stats import Median
from ppdiffusers_tome.tuning.images import psnr

CELL = 2  # tokens a side, of which one is a destination


@dataclass
class Layer:
    """One layer of self-attention while a picture is drawn: which call it is in, and what it keeps until the next.

    Attributes:
        step: how many calls there were.
        kept: groups of an earlier step.
        rng: chance, anew for every picture.
    """

    rng: np.random.Generator
    step: int = 0
    kept: np.ndarray | None = None


@dataclass(frozen=True)
class Prototype:
    """An idea: groups for queries and groups for keys and values, of each image of the batch.

    Attributes:
        name: in the table.
        queries, keys: from a layer and its tokens, numpy ``[batch, tokens, channels]``, to the number of each token's
            group ``[batch, tokens]``, or None where all stay. Keys None: as the queries.
        sizes: whether a group's key counts as often as it stands for tokens.
        whole_every: on every so many calls attention is whole, and its outputs are what the next ones match on.
        reference: the name of what it is compared with.
    """

    name: str
    queries: Callable[[Layer, np.ndarray], np.ndarray | None]
    keys: Callable[[Layer, np.ndarray], np.ndarray | None] | None = None
    sizes: bool = False
    whole_every: int = 0
    match_outputs: Callable[[Layer, np.ndarray], np.ndarray] | None = None
    reference: str = "tome 0.5"
    steps: int = 10


# Matching ------------------------------------------------------------------------------------------------------------


def cells(tokens: int) -> np.ndarray:
    """The tokens of every cell of a square grid, ``[cells, CELL * CELL]``."""
    side = int(tokens**0.5)
    grid = np.arange(tokens).reshape(side // CELL, CELL, side // CELL, CELL)
    return grid.transpose(0, 2, 1, 3).reshape(-1, CELL * CELL)


def random_destinations(layer: Layer, x: np.ndarray) -> np.ndarray:
    """A random token of every cell, the same for all images; ``[batch, cells]``."""
    found = cells(x.shape[1])
    chosen = found[np.arange(len(found)), layer.rng.integers(0, found.shape[1], len(found))]
    return np.broadcast_to(chosen, (len(x), len(chosen)))


def representatives(layer: Layer, x: np.ndarray) -> np.ndarray:
    """The token of every cell that is most similar to the others of it."""
    found = cells(x.shape[1])
    inside = normalised(x)[:, found]  # [batch, cells, tokens of a cell, channels]
    best = np.einsum("bcik,bcjk->bci", inside, inside).argmax(-1)
    return found[np.arange(len(found)), best]


def normalised(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-6)


def groups(
    x: np.ndarray, destinations: np.ndarray, ratio: float, *, near: int = 0, penalty: float = 0.0,
    importance: np.ndarray | None = None,
) -> np.ndarray:
    """Merge a share of the tokens, each into the most similar destination, the most similar first.

    Args:
        x: ``[batch, tokens, channels]``.
        destinations: of each image, ``[batch, destinations]``.
        ratio: the share.
        near: how many cells away a destination may lie; 0 for any.
        penalty: what a destination's similarity loses for each token that chose it already.
        importance: what a token's similarity loses, ``[tokens]``.
    """
    count, side = x.shape[1], int(x.shape[1] ** 0.5)
    found = np.empty(x.shape[:2], np.int64)
    for image, (tokens, kept) in enumerate(zip(normalised(x), destinations, strict=True)):
        sources = np.setdiff1d(np.arange(count), kept)
        similarity = tokens[sources] @ tokens[kept].T
        if near:
            across = np.abs(sources[:, None] % side - kept % side)
            down = np.abs(sources[:, None] // side - kept // side)
            similarity[np.maximum(across, down) > CELL * near] = -2
        choice, score = similarity.argmax(1), similarity.max(1)
        if penalty:
            taken = np.zeros(len(kept))
            for source in np.argsort(-score):
                own = similarity[source] - penalty * taken
                choice[source], score[source] = own.argmax(), own.max()
                taken[choice[source]] += 1
        if importance is not None:
            score = score - importance[sources]
        merged = np.argsort(-score)[: int(ratio * count)]
        leader = np.arange(count)
        leader[sources[merged]] = kept[choice[merged]]
        found[image] = np.unique(leader, return_inverse=True)[1].reshape(-1)
    return found


def merge(
    ratio: float, destinations: Callable[[Layer, np.ndarray], np.ndarray] = random_destinations, **how: Any
) -> Callable[[Layer, np.ndarray], np.ndarray]:
    return lambda layer, x: groups(x, destinations(layer, x), ratio, **how)


def guided(ratio: float, weight: float) -> Callable[[Layer, np.ndarray], np.ndarray]:
    """Where the two halves of guidance differ, tokens merge last; the halves share their groups' order alone."""

    def find(layer: Layer, x: np.ndarray) -> np.ndarray:
        one, other = np.split(x, 2)
        apart = np.linalg.norm(one - other, axis=-1).mean(0)
        return groups(x, random_destinations(layer, x), ratio, importance=weight * apart / max(apart.mean(), 1e-6))

    return find


def keys_alone(layer: Layer, x: np.ndarray) -> None:
    return None


# Attention -----------------------------------------------------------------------------------------------------------


def one_hot(group: np.ndarray) -> paddle.Tensor:
    return F.one_hot(paddle.to_tensor(group), int(group.max()) + 1)


def means(x: paddle.Tensor, hot: paddle.Tensor) -> paddle.Tensor:
    return paddle.matmul(hot, x, transpose_x=True) / hot.sum(1).unsqueeze(-1)


@dataclass
class Processor:
    """In place of a layer's own processor."""

    prototype: Prototype
    layer: Layer

    def __call__(self, attn: Any, hidden_states: paddle.Tensor, *_: Any, **__: Any) -> paddle.Tensor:
        own, layer = self.prototype, self.layer
        layer.step += 1
        if own.whole_every:
            if (layer.step - 1) % own.whole_every == 0:
                out = self._attend(attn, hidden_states, hidden_states, None)
                assert own.match_outputs is not None
                layer.kept = own.match_outputs(layer, out.numpy())
                return out
            assert layer.kept is not None
            query_groups: np.ndarray | None = layer.kept
            key_groups = query_groups
        else:
            x = hidden_states.numpy()
            query_groups = own.queries(layer, x)
            key_groups = query_groups if own.keys is None else own.keys(layer, x)
        keys, bias = hidden_states, None
        if key_groups is not None:
            hot = one_hot(key_groups)
            keys = means(hidden_states, hot)
            bias = hot.sum(1).log() if own.sizes else None
        if query_groups is not None:
            hot = one_hot(query_groups)
            return paddle.matmul(hot, self._attend(attn, means(hidden_states, hot), keys, bias))
        return self._attend(attn, hidden_states, keys, bias)

    def _attend(
        self, attn: Any, queries: paddle.Tensor, keys: paddle.Tensor, bias: paddle.Tensor | None
    ) -> paddle.Tensor:
        query, key, value = (
            linear(x).reshape([0, 0, attn.heads, -1]).transpose([0, 2, 1, 3])
            for linear, x in ((attn.to_q, queries), (attn.to_k, keys), (attn.to_v, keys))
        )
        scores = paddle.matmul(query, key, transpose_y=True) * attn.scale
        if bias is not None:
            scores = scores + bias.unsqueeze([1, 2])
        out = paddle.matmul(F.softmax(scores), value).transpose([0, 2, 1, 3]).flatten(2)
        return attn.to_out[0](out)


@contextmanager
def put_on(layers: Sequence[Any], prototype: Prototype, seed: int) -> Iterator[None]:
    before = [layer.processor for layer in layers]
    for number, layer in enumerate(layers):
        layer.set_processor(Processor(prototype, Layer(np.random.default_rng([seed, number]))))
    try:
        yield
    finally:
        for layer, processor in zip(layers, before, strict=True):
            layer.set_processor(processor)


SIZES_5, SIZES_7, LONGER = "sizes in the scores, 0.5", "sizes in the scores, 0.7", "tome 0.5, 20 steps"
PROTOTYPES = (
    Prototype("tome 0.5", merge(0.5)),
    Prototype("representatives", merge(0.5, representatives)),  # ReToM, SiTo
    Prototype("destinations within 1 cell", merge(0.5, near=1)),  # CoReDiT
    Prototype("destinations within 3 cells", merge(0.5, near=3)),
    Prototype("importance from guidance, weight 0.1", guided(0.5, 0.1)),
    Prototype("importance from guidance, weight 0.5", guided(0.5, 0.5)),
    Prototype("keys 0.75, every query", keys_alone, merge(0.75), sizes=True),
    Prototype("queries 0.25, keys 0.667, with sizes", merge(0.25), merge(0.667), sizes=True),  # AsymRnR
    Prototype("on outputs, every 2nd step whole", merge(0.5), whole_every=2, match_outputs=merge(0.5)),  # DiTo
    Prototype(
        "the same, a destination's choices penalised", merge(0.5), whole_every=2,
        match_outputs=merge(0.5, penalty=0.02),
    ),
    Prototype(SIZES_5, merge(0.5), sizes=True),  # ToMe
    Prototype(SIZES_7, merge(0.7), sizes=True, reference=SIZES_5),
    Prototype("destinations within 1 cell, with sizes, 0.5", merge(0.5, near=1), sizes=True, reference=SIZES_5),
    Prototype("destinations within 1 cell, with sizes, 0.7", merge(0.7, near=1), sizes=True, reference=SIZES_7),
    Prototype("queries 0.4, keys 0.75, with sizes", merge(0.4), merge(0.75), sizes=True, reference=SIZES_7),
    Prototype("queries 0.5, keys 0.75, with sizes", merge(0.5), merge(0.75), sizes=True, reference=SIZES_7),
    *(
        Prototype(
            f"on outputs, penalised, every {number} step whole, with sizes, {ratio}", merge(ratio), sizes=True,
            whole_every=every, match_outputs=merge(ratio, penalty=0.02), reference=SIZES_5,
        )
        for every, number, ratio in ((2, "2nd", 0.5), (2, "2nd", 0.7), (5, "5th", 0.5))
    ),
    Prototype(LONGER, merge(0.5), steps=20),
    Prototype(
        "on outputs, penalised, every 4th step whole, 20 steps", merge(0.5), whole_every=4,
        match_outputs=merge(0.5, penalty=0.02), reference=LONGER, steps=20,
    ),
)  # fmt: skip


def finest_self_attention(pipe: Any) -> list[Any]:
    """A transformer's layers of self-attention, or those of a UNet's finest level."""
    if hasattr(pipe, "transformer"):
        return [block.attn1 for block in pipe.transformer.transformer_blocks]
    finest = (*pipe.unet.down_blocks[0].attentions, *pipe.unet.up_blocks[-1].attentions)
    return [block.attn1 for transformer in finest for block in transformer.transformer_blocks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="bundled-dit")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    let_mkl_use_avx2()
    keep_freed_memory()
    source = find_model(args.model, class_labels=True)
    pipe = load_pipeline(source, class_labels=True)
    pipe.set_progress_bar_config(disable=True)
    labels = sampling.get_class_labels(pipe)
    prompts = list(PROMPTS) if labels is None else labels.list_names()
    height, width = sampling.get_native_size(pipe)
    enable_chunked_attention(pipe)
    layers = finest_self_attention(pipe)

    def draw(prompt: str, seed: int, steps: int) -> np.ndarray:
        return np.asarray(
            sampling.generate_image(
                pipe, prompt, height=height, width=width, seed=seed, steps=steps,
                guidance_scale=choose_guidance_scale(source, takes_classes=labels is not None),
            )
        )  # fmt: skip

    cases = [(prompt, seed) for prompt in prompts for seed in args.seeds]
    found: dict[str, list[float]] = {each.name: [] for each in PROTOTYPES}
    for prompt, seed in tqdm(cases):
        whole = {steps: draw(prompt, seed, steps) for steps in {each.steps for each in PROTOTYPES}}
        for each in PROTOTYPES:
            with put_on(layers, each, seed):
                found[each.name].append(psnr(whole[each.steps], draw(prompt, seed, each.steps)))
    print(f"{args.model}, {len(cases)} pictures; medians with their 95% intervals")
    print("| method | PSNR, dB | compared with | dB above that |\n|---|---:|---|---:|")
    for each in PROTOTYPES:
        apart = [own - other for own, other in zip(found[each.name], found[each.reference], strict=True)]
        print(
            f"| {each.name} | {Median.from_values(found[each.name]).format('{:.1f}'.format)} | {each.reference} | "
            f"{Median.from_values(apart).format('{:+.1f}'.format)} |"
        )


if __name__ == "__main__":
    main()
