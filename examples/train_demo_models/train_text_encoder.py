"""Make the bundled model's tokenizer and teach its text encoder to read.

    python examples/train_demo_models/train_text_encoder.py --output runs/text --minutes 1

A text-to-image model learns slowly when it must learn to read and to draw at once. CLIP is therefore trained on its
own, before any denoiser, and so is this one: the hidden states of the padding after the prompt are asked for the
subject, and whether it is mirrored. Prompts say the same in many ways, with words between that mean nothing, so that
what people type is read too. The text encoder then stays frozen.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from common import decayed, make_parser, step
from run import Run
from torch import nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
from views import prompt_of_view

from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS

LENGTH = 32
LONGEST = 22  # tokens of a training prompt with its two ends; the padding after them is asked
OPENINGS = ("a {}photo of", "a {}photograph of", "a {}picture of", "an {}image of", "{}photo of", "{}")
WORDS = ("a", "an", "the", "of", "and", "in", "on", "with", "at", "photo", "photograph", "picture", "image", "mirrored")


def vocabulary() -> list[str]:
    """Every word that shall be one token; all others are spelt."""
    words = [*WORDS, *(word for subject in SUBJECTS for word in (subject.name, *subject.words.split()))]
    return list(dict.fromkeys(words))


def write_tokenizer(folder: Path) -> CLIPTokenizer:
    """A byte-pair tokenizer in CLIP's format in which every word of ``vocabulary`` is one token."""
    split = {word: (*word[:-1], word[-1] + "</w>") for word in vocabulary()}
    merges: list[tuple[str, str]] = []
    while any(len(parts) > 1 for parts in split.values()):
        pairs = Counter(pair for parts in split.values() for pair in pairwise(parts))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, parts in split.items():
            joined, at = [], 0
            while at < len(parts):
                length = 2 if parts[at : at + 2] == best else 1
                joined.append("".join(parts[at : at + length]))
                at += length
            split[word] = tuple(joined)
    letters = [chr(c) for c in range(33, 127)]
    tokens = letters + [c + "</w>" for c in letters] + ["".join(m) for m in merges]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(dict.fromkeys(tokens))}))
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


def random_prompt(rng: np.random.Generator) -> tuple[str, int, int]:
    """A prompt, its subject (0 for none) and whether it is mirrored (0 for no subject, 1 for no, 2 for yes)."""
    if rng.random() < 0.1:
        return (" ".join(random_words(rng)) if rng.random() < 0.5 else ""), 0, 0
    number, mirrored = int(rng.integers(len(SUBJECTS))), bool(rng.random() < 0.3)
    subject = SUBJECTS[number]
    if rng.random() < 0.5:
        return prompt_of_view(subject, mirrored), number + 1, 1 + mirrored
    opening = str(rng.choice(OPENINGS)).format("mirrored " if mirrored else "")
    named = str(rng.choice([subject.words, subject.name]))
    return " ".join([*random_words(rng), opening, named, *random_words(rng)]), number + 1, 1 + mirrored


def random_words(rng: np.random.Generator) -> list[str]:
    """Up to two words that mean nothing, mostly none."""
    count = int(rng.choice([0, 0, 0, 1, 2]))
    spelt = ["".join(chr(c) for c in rng.integers(97, 123, rng.integers(2, 6))) for _ in range(count)]
    return [str(rng.choice(WORDS[:9])) if rng.random() < 0.4 else word for word in spelt]


class Readout(nn.Module):
    """Reads subject and mirroring off the padding's hidden states; thrown away after training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.subject, self.mirrored = nn.Linear(width, len(SUBJECTS) + 1), nn.Linear(width, 3)

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        padding = hidden[:, LONGEST:]
        return [self.subject(padding), self.mirrored(padding)]


def batch(rng: np.random.Generator, tokenizer: CLIPTokenizer, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token numbers ``[count, LENGTH]`` and answers ``[count, 2]`` of prompts that are short enough."""
    ids: list[torch.Tensor] = []
    asked: list[list[int]] = []
    while len(ids) < count:
        prompt, *answers = random_prompt(rng)
        encoded = encode(tokenizer, [prompt])[0]
        if (encoded[LONGEST - 1 :] == tokenizer.eos_token_id).all():
            ids.append(encoded)
            asked.append(answers)
    return torch.stack(ids), torch.tensor(asked)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    args = parser.parse_args()
    tokenizer = write_tokenizer(args.output / "tokenizer")
    ends = tokenizer.convert_tokens_to_ids(["<|startoftext|>", "<|endoftext|>"])
    torch.manual_seed(args.seed)
    model = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, projection_dim=128,
            num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=LENGTH, hidden_act="quick_gelu",
            bos_token_id=ends[0], eos_token_id=ends[1], pad_token_id=ends[1],
        )
    )
    readout = Readout(128)
    optimiser = torch.optim.AdamW([*model.parameters(), *readout.parameters()], lr=1e-3, weight_decay=1e-2)
    run = Run(args.output, "text encoder", args.minutes, args.seed, model=model, readout=readout, optimiser=optimiser)
    while run.running:
        ids, asked = batch(run.chance(), tokenizer, 64)
        replies = readout(model(ids)[0])
        loss = sum(
            F.cross_entropy(reply.flatten(0, 1), asked[:, i, None].expand(-1, reply.shape[1]).flatten())
            for i, reply in enumerate(replies)
        )
        step(loss, optimiser, decayed(1e-3, run))
        run.step(loss=loss.item())
    if not run.finished:
        ids, asked = batch(np.random.default_rng(2**31 + 7), tokenizer, 512)
        with torch.no_grad():
            replies = readout(model(ids)[0])
        right = [(reply.argmax(-1) == asked[:, i, None]).float().mean().item() for i, reply in enumerate(replies)]
        model.save_pretrained(args.output / "text_encoder")
        run.finish(subjects_read_rightly=round(right[0], 4), mirroring_read_rightly=round(right[1], 4))


if __name__ == "__main__":
    main()
