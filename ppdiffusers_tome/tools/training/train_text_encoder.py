"""Make the bundled model's tokenizer and teach its text encoder to read.

    python -m ppdiffusers_tome.tools.training.train_text_encoder --output runs/text --minutes 3

A text-to-image model learns slowly when it must learn to read and to draw at once. CLIP is therefore trained on
its own, before any denoiser, and so is this one: the hidden states of the padding after the prompt are asked, in
turn, for the first shape, the second shape and the background. The denoiser's cross-attention then finds each
thing with its colour and place in one token, and the text encoder stays frozen.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from ppdiffusers_tome.tools.bundled import scenes
from ppdiffusers_tome.tools.training.common import Log, decayed, start

LENGTH = 32
PLACES = ("above", "below", "left of", "right of", "middle")
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}


def write_tokenizer(folder: Path) -> CLIPTokenizer:
    """A byte-pair tokenizer in CLIP's format in which every word of the little language is one token."""
    words = [*scenes.COLOURS, *scenes.SHAPES, "a", "an", "on", "background", "above", "below", "left", "right", "of"]
    split = {word: (*word[:-1], word[-1] + "</w>") for word in words}
    merges: list[tuple[str, str]] = []
    while any(len(parts) > 1 for parts in split.values()):
        pairs = Counter(pair for parts in split.values() for pair in pairwise(parts))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, parts in split.items():
            joined, at = [], 0
            while at < len(parts):
                step = 2 if parts[at : at + 2] == best else 1
                joined.append("".join(parts[at : at + step]))
                at += step
            split[word] = tuple(joined)
    letters = [chr(c) for c in range(33, 127)]
    vocabulary = letters + [c + "</w>" for c in letters] + ["".join(m) for m in merges]
    vocabulary += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(dict.fromkeys(vocabulary))}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(m) for m in merges) + "\n")
    tokenizer = CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=LENGTH, pad_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def encode(tokenizer: CLIPTokenizer, prompts: list[str]) -> torch.Tensor:
    return tokenizer(
        prompts, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"
    ).input_ids


def answers(scene: scenes.Scene | None) -> list[int]:
    """What the padding is asked: (shape, colour, place) of the first and second shape, and the background.

    0 stands for "none": the whole of an empty prompt, and the second shape of a scene that has one.
    """
    if scene is None:
        return [0] * 7
    colours = list(scenes.COLOURS)
    first = scene.relation or "middle"
    places = (first, OPPOSITE.get(first))
    row = []
    for index in range(2):
        if index < len(scene.shapes):
            shape = scene.shapes[index]
            row += [
                1 + scenes.SHAPES.index(shape.name),
                1 + colours.index(shape.colour),
                1 + PLACES.index(places[index]),
            ]
        else:
            row += [0, 0, 0]
    return [*row, 1 + colours.index(scene.background)]


class Readout(nn.Module):
    """Linear questions to the padding's hidden states; thrown away after training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (len(scenes.SHAPES) + 1, len(scenes.COLOURS) + 1, len(PLACES) + 1)
        self.shape, self.colour, self.place = (nn.Linear(width, size) for size in sizes)
        self.ground = nn.Linear(width, sizes[1])

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        first, second, ground = (hidden[:, 18 + role :: 3] for role in range(3))  # 18: past the longest prompt
        of_shapes = (self.shape, self.colour, self.place)
        return [head(slot) for slot in (first, second) for head in of_shapes] + [self.ground(ground)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, output = start(args.seed, args.output)
    tokenizer = write_tokenizer(output / "tokenizer")
    ends = tokenizer.convert_tokens_to_ids(["<|startoftext|>", "<|endoftext|>"])
    model = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, projection_dim=128,
            num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=LENGTH, hidden_act="quick_gelu",
            bos_token_id=ends[0], eos_token_id=ends[1], pad_token_id=ends[1],
        )
    )
    readout = Readout(128)
    parameters = [*model.parameters(), *readout.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2)
    log = Log(output, args.minutes)

    def batch(count: int, held_out: bool) -> tuple[torch.Tensor, torch.Tensor]:
        drawn: list[scenes.Scene | None] = []
        while len(drawn) < count:
            scene = scenes.random_scene(rng)
            if scene.held_out == held_out:
                drawn.append(None if not held_out and rng.random() < 0.05 else scene)
        ids = encode(tokenizer, [scene.prompt if scene else "" for scene in drawn])
        return ids, torch.tensor([answers(scene) for scene in drawn])

    while log.running:
        ids, asked = batch(128, held_out=False)
        for group in optimiser.param_groups:
            group["lr"] = decayed(1e-3, log)
        replies = readout(model(ids)[0])
        loss = sum(
            F.cross_entropy(reply.flatten(0, 1), asked[:, i, None].expand(-1, reply.shape[1]).flatten())
            for i, reply in enumerate(replies)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        log.step(loss=loss.item())
    ids, asked = batch(512, held_out=True)
    with torch.no_grad():
        replies = readout(model(ids)[0])
    right = [(reply.argmax(-1) == asked[:, i, None]).float().mean().item() for i, reply in enumerate(replies)]
    print("read rightly on held-out prompts:", np.round(right, 4))
    model.save_pretrained(output / "text_encoder")


if __name__ == "__main__":
    main()
