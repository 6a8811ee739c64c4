"""Measure the PSNR of published methods that this package does not have, as prototypes.

    python docs/measured/tried_methods.py --model dit --seeds 0 1

Every prototype is a processor of self-attention on plain assignments of tokens to groups, matched by numpy: it measures
the idea, not an implementation, so no speed is reported. Each is compared with ``tome`` or with another reference,
image by image, from the same noise. Run it from the repository, with the package installed.
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

from ppdiffusers_tome.cpu import prepare_cpu
from ppdiffusers_tome.tools.generation import sampling
from ppdiffusers_tome.tools.generation.loading import load_pipeline
from ppdiffusers_tome.tools.generation.models import find_model
from ppdiffusers_tome.tools.measure.stats import Median
from ppdiffusers_tome.tuning.similarity import compute_psnr

CELL = 2  # tokens per side of a cell, one of which is a destination


@dataclass
class LayerState:
    """The state of one self-attention layer while an image is generated.

    Attributes:
        rng: the source of randomness, new for every image.
        step: number of calls so far.
        groups: those of an earlier step.
    """

    rng: np.random.Generator
    step: int = 0
    groups: np.ndarray | None = None


# Takes tokens [batch, tokens, channels] and returns the group index of each, [batch, tokens]; None keeps all tokens.
Grouping = Callable[[LayerState, np.ndarray], np.ndarray | None]


@dataclass(frozen=True)
class Prototype:
    """A method as groups of queries and groups of keys and values.

    Attributes:
        name: in the table.
        queries: groups of the queries.
        keys: groups of the keys and values; None for those of the queries.
        sizes: weight keys by the size of their group, as proportional attention does.
        whole_every: run unmerged in every such step; 0 for never.
        match_outputs: group the outputs of an unmerged step, for the steps up to the next one.
        reference: name of the prototype to compare with.
        steps: of the image.
    """

    name: str
    queries: Grouping
    keys: Grouping | None = None
    sizes: bool = False
    whole_every: int = 0
    match_outputs: Grouping | None = None
    reference: str = "tome 0.5"
    steps: int = 10


# Matching ------------------------------------------------------------------------------------------------------------


def split_cells(num_tokens: int) -> np.ndarray:
    """Return the tokens of every cell of a square grid, ``[cells, CELL * CELL]``."""
    side = int(num_tokens**0.5)
    grid = np.arange(num_tokens).reshape(side // CELL, CELL, side // CELL, CELL)
    return grid.transpose(0, 2, 1, 3).reshape(-1, CELL * CELL)


def choose_randomly(state: LayerState, x: np.ndarray) -> np.ndarray:
    """Choose a random token of every cell, ``[batch, cells]``, equal in the batch."""
    cells = split_cells(x.shape[1])
    destinations = cells[np.arange(len(cells)), state.rng.integers(0, cells.shape[1], len(cells))]
    return np.broadcast_to(destinations, (len(x), len(destinations)))


def choose_representatives(state: LayerState, x: np.ndarray) -> np.ndarray:
    """Choose the token most similar to the others of its cell, ``[batch, cells]``."""
    cells = split_cells(x.shape[1])
    tokens = normalise(x)[:, cells]  # [batch, cells, tokens of a cell, channels]
    best = np.einsum("bcik,bcjk->bci", tokens, tokens).argmax(-1)
    return cells[np.arange(len(cells)), best]


def normalise(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-6)


def group_tokens(
    x: np.ndarray, destinations: np.ndarray, ratio: float, *, near: int = 0, penalty: float = 0.0,
    importance: np.ndarray | None = None,
) -> np.ndarray:
    """Merge tokens into their most similar destinations, the most similar tokens first.

    Args:
        x: ``[batch, tokens, channels]``.
        destinations: ``[batch, destinations]``.
        ratio: fraction of the tokens to merge.
        near: maximum distance of a destination in cells; 0 for any.
        penalty: subtracted from the similarity of a destination for each token that has chosen it.
        importance: subtracted from the similarity of a token, ``[tokens]``.

    Returns:
        The group index of each token, ``[batch, tokens]``.
    """
    num_tokens, side = x.shape[1], int(x.shape[1] ** 0.5)
    groups = np.empty(x.shape[:2], np.int64)
    for image, (tokens, dst) in enumerate(zip(normalise(x), destinations, strict=True)):
        src = np.setdiff1d(np.arange(num_tokens), dst)
        similarity = tokens[src] @ tokens[dst].T
        if near:
            columns = np.abs(src[:, None] % side - dst % side)
            rows = np.abs(src[:, None] // side - dst // side)
            similarity[np.maximum(columns, rows) > CELL * near] = -2
        choice, score = similarity.argmax(1), similarity.max(1)
        if penalty:
            num_chosen = np.zeros(len(dst))
            for token in np.argsort(-score):
                penalised = similarity[token] - penalty * num_chosen
                choice[token], score[token] = penalised.argmax(), penalised.max()
                num_chosen[choice[token]] += 1
        if importance is not None:
            score = score - importance[src]
        merged = np.argsort(-score)[: int(ratio * num_tokens)]
        owners = np.arange(num_tokens)
        owners[src[merged]] = dst[choice[merged]]
        groups[image] = np.unique(owners, return_inverse=True)[1].reshape(-1)
    return groups


def merge(
    ratio: float, choose_destinations: Callable[[LayerState, np.ndarray], np.ndarray] = choose_randomly, **options: Any
) -> Grouping:
    """Return a grouping by ``group_tokens``."""
    return lambda state, x: group_tokens(x, choose_destinations(state, x), ratio, **options)


def merge_by_guidance(ratio: float, weight: float) -> Grouping:
    """Return a grouping that merges tokens last where the two halves of guidance differ."""

    def group(state: LayerState, x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2)
        difference = np.linalg.norm(first - second, axis=-1).mean(0)
        importance = weight * difference / max(difference.mean(), 1e-6)
        return group_tokens(x, choose_randomly(state, x), ratio, importance=importance)

    return group


def keep_all(state: LayerState, x: np.ndarray) -> None:
    return None


# Attention -----------------------------------------------------------------------------------------------------------


def encode_groups(groups: np.ndarray) -> paddle.Tensor:
    """Return the groups as one-hot rows, ``[batch, tokens, groups]``."""
    return F.one_hot(paddle.to_tensor(groups), int(groups.max()) + 1)


def average_groups(x: paddle.Tensor, one_hot: paddle.Tensor) -> paddle.Tensor:
    return paddle.matmul(one_hot, x, transpose_x=True) / one_hot.sum(1).unsqueeze(-1)


@dataclass
class Processor:
    """An attention processor that runs a prototype."""

    prototype: Prototype
    state: LayerState

    def __call__(self, attn: Any, hidden_states: paddle.Tensor, *_: Any, **__: Any) -> paddle.Tensor:
        prototype, state = self.prototype, self.state
        state.step += 1
        if prototype.match_outputs is not None:
            if (state.step - 1) % prototype.whole_every == 0:
                out = self._attend(attn, hidden_states, hidden_states, None)
                state.groups = prototype.match_outputs(state, out.numpy())
                return out
            query_groups = key_groups = state.groups
        else:
            x = hidden_states.numpy()
            query_groups = prototype.queries(state, x)
            key_groups = query_groups if prototype.keys is None else prototype.keys(state, x)
        keys, bias = hidden_states, None
        if key_groups is not None:
            one_hot = encode_groups(key_groups)
            keys = average_groups(hidden_states, one_hot)
            bias = one_hot.sum(1).log() if prototype.sizes else None
        if query_groups is None:
            return self._attend(attn, hidden_states, keys, bias)
        one_hot = encode_groups(query_groups)
        return paddle.matmul(one_hot, self._attend(attn, average_groups(hidden_states, one_hot), keys, bias))

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
def use_prototype(layers: Sequence[Any], prototype: Prototype, seed: int) -> Iterator[None]:
    previous = [layer.processor for layer in layers]
    for number, layer in enumerate(layers):
        layer.set_processor(Processor(prototype, LayerState(np.random.default_rng([seed, number]))))
    try:
        yield
    finally:
        for layer, processor in zip(layers, previous, strict=True):
            layer.set_processor(processor)


SIZES_5, SIZES_7, LONGER = "sizes in the scores, 0.5", "sizes in the scores, 0.7", "tome 0.5, 20 steps"
PROTOTYPES = (
    Prototype("tome 0.5", merge(0.5)),
    Prototype("representatives", merge(0.5, choose_representatives)),  # ReToM, SiTo
    Prototype("destinations within 1 cell", merge(0.5, near=1)),  # CoReDiT
    Prototype("destinations within 3 cells", merge(0.5, near=3)),
    Prototype("importance from guidance, weight 0.1", merge_by_guidance(0.5, 0.1)),
    Prototype("importance from guidance, weight 0.5", merge_by_guidance(0.5, 0.5)),
    Prototype("keys 0.75, every query", keep_all, merge(0.75), sizes=True),
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


def find_finest_self_attention(pipe: Any) -> list[Any]:
    """Return the self-attention layers of a transformer, or of a UNet's finest level."""
    if hasattr(pipe, "transformer"):
        return [block.attn1 for block in pipe.transformer.transformer_blocks]
    finest = (*pipe.unet.down_blocks[0].attentions, *pipe.unet.up_blocks[-1].attentions)
    return [block.attn1 for transformer in finest for block in transformer.transformer_blocks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="dit")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    prepare_cpu()
    source = find_model(args.model)
    pipe = load_pipeline(source)
    pipe.set_progress_bar_config(disable=True)
    labels = sampling.get_labels(pipe)
    prompts = list(find_model(args.model).default_prompts) if labels is None else labels.list_names()
    height, width = sampling.get_native_size(pipe)
    layers = find_finest_self_attention(pipe)

    def generate(prompt: str, seed: int, steps: int) -> np.ndarray:
        return np.asarray(
            sampling.generate_image(
                pipe, prompt, height=height, width=width, seed=seed, steps=steps,
                guidance_scale=source.guidance_scale or (7.5 if labels is None else 4.0),
            )
        )  # fmt: skip

    cases = [(prompt, seed) for prompt in prompts for seed in args.seeds]
    psnrs: dict[str, list[float]] = {prototype.name: [] for prototype in PROTOTYPES}
    for prompt, seed in tqdm(cases):
        unmerged = {steps: generate(prompt, seed, steps) for steps in {prototype.steps for prototype in PROTOTYPES}}
        for prototype in PROTOTYPES:
            with use_prototype(layers, prototype, seed):
                image = generate(prompt, seed, prototype.steps)
            psnrs[prototype.name].append(compute_psnr(unmerged[prototype.steps], image))
    print(f"{args.model}, {len(cases)} images; medians with their 95% intervals")
    print("| method | PSNR, dB | compared with | dB above that |\n|---|---:|---|---:|")
    for prototype in PROTOTYPES:
        psnr, reference = psnrs[prototype.name], psnrs[prototype.reference]
        differences = [a - b for a, b in zip(psnr, reference, strict=True)]
        print(
            f"| {prototype.name} | {Median.from_values(psnr).format('{:.1f}'.format)} | {prototype.reference} | "
            f"{Median.from_values(differences).format('{:+.1f}'.format)} |"
        )


if __name__ == "__main__":
    main()
