"""Make the small model's tokenizer and train its text encoder.

    python examples/train_demo_models/train_text_encoder.py --output runs/text --minutes 1

A text-to-image model learns slowly if it must learn language and images at once. CLIP is therefore trained before any
denoiser, and so is this one: from the hidden states of the padding after the prompt, two linear layers classify the
subject and whether it is mirrored. Training prompts vary in their words and contain meaningless ones, so that the
prompts of users are understood too. The text encoder then stays frozen.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from common import compute_cosine_rate, make_parser, update_weights
from photographs import SUBJECTS
from run import Run
from tokenizer_files import write_tokenizer_files
from torch import nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
from views import make_prompt

LENGTH = 32
MAX_PROMPT = 22  # tokens of a training prompt with its start and end; the padding after them is classified
OPENINGS = ("a {}photo of", "a {}photograph of", "a {}picture of", "an {}image of", "{}photo of", "{}")
WORDS = ("a", "an", "the", "of", "and", "in", "on", "with", "at", "photo", "photograph", "picture", "image", "mirrored")


def list_vocabulary() -> list[str]:
    """Return the words that are one token each; all others are spelt."""
    words = [*WORDS, *(word for subject in SUBJECTS for word in (subject.name, *subject.words.split()))]
    return list(dict.fromkeys(words))


def write_tokenizer(folder: Path) -> CLIPTokenizer:
    """Write a byte-pair tokenizer in CLIP's format for the words of ``list_vocabulary``."""
    files = write_tokenizer_files(folder, list_vocabulary())
    tokenizer = CLIPTokenizer(*files, model_max_length=LENGTH, pad_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    return tokenizer


def tokenize(tokenizer: CLIPTokenizer, prompts: list[str]) -> torch.Tensor:
    """Return token numbers ``[prompts, LENGTH]``."""
    return tokenizer(
        prompts, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"
    ).input_ids


def make_random_prompt(rng: np.random.Generator) -> tuple[str, int, int]:
    """Return a prompt and the classes of its subject and mirroring.

    The subject's class is 0 for none, or its number plus 1; that of mirroring is 0 for no subject, 1 for no, 2 for yes.
    """
    if rng.random() < 0.1:
        return (" ".join(make_random_words(rng)) if rng.random() < 0.5 else ""), 0, 0
    number, mirrored = int(rng.integers(len(SUBJECTS))), bool(rng.random() < 0.3)
    subject = SUBJECTS[number]
    if rng.random() < 0.5:
        return make_prompt(subject, mirrored), number + 1, 1 + mirrored
    opening = str(rng.choice(OPENINGS)).format("mirrored " if mirrored else "")
    name = str(rng.choice([subject.words, subject.name]))
    return " ".join([*make_random_words(rng), opening, name, *make_random_words(rng)]), number + 1, 1 + mirrored


def make_random_words(rng: np.random.Generator) -> list[str]:
    """Return up to two meaningless words, mostly none."""
    count = int(rng.choice([0, 0, 0, 1, 2]))
    spelt = ["".join(chr(c) for c in rng.integers(97, 123, rng.integers(2, 6))) for _ in range(count)]
    return [str(rng.choice(WORDS[:9])) if rng.random() < 0.4 else word for word in spelt]


class Readout(nn.Module):
    """Linear classifiers of subject and mirroring on the padding's hidden states, for training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.subject, self.mirrored = nn.Linear(width, len(SUBJECTS) + 1), nn.Linear(width, 3)

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        padding = hidden[:, MAX_PROMPT:]
        return [self.subject(padding), self.mirrored(padding)]


def make_batch(rng: np.random.Generator, tokenizer: CLIPTokenizer, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token numbers ``[count, LENGTH]`` and classes ``[count, 2]`` of random prompts."""
    ids: list[torch.Tensor] = []
    classes: list[list[int]] = []
    while len(ids) < count:
        prompt, *prompt_classes = make_random_prompt(rng)
        prompt_ids = tokenize(tokenizer, [prompt])[0]
        if (prompt_ids[MAX_PROMPT - 1 :] == tokenizer.eos_token_id).all():
            ids.append(prompt_ids)
            classes.append(prompt_classes)
    return torch.stack(ids), torch.tensor(classes)


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
    while run.is_running:
        ids, classes = make_batch(run.start_step(), tokenizer, 64)
        outputs = readout(model(ids)[0])
        loss = sum(
            F.cross_entropy(logits.flatten(0, 1), classes[:, i, None].expand(-1, logits.shape[1]).flatten())
            for i, logits in enumerate(outputs)
        )
        update_weights(loss, optimiser, compute_cosine_rate(1e-3, run))
        run.end_step(loss=loss.item())
    if not run.is_finished:
        ids, classes = make_batch(np.random.default_rng(2**31 + 7), tokenizer, 512)
        with torch.no_grad():
            outputs = readout(model(ids)[0])
        accuracies = [
            round((logits.argmax(-1) == classes[:, i, None]).float().mean().item(), 4)
            for i, logits in enumerate(outputs)
        ]
        model.save_pretrained(args.output / "text_encoder")
        run.finish(subject_accuracy=accuracies[0], mirroring_accuracy=accuracies[1])


if __name__ == "__main__":
    main()
