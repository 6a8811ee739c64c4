"""The text model of the emoji UNet: a CLIP text model without layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizer_files import END, START
from torch import nn

LENGTH = 6  # tokens of a prompt with its start, its end and the padding
WIDTH = 64


class Text(nn.Module):
    """Embeddings of words and positions, normalised.

    Attributes:
        words: of the prompts, each one token, after the start and the end.
    """

    def __init__(self, classes: list[str]) -> None:
        super().__init__()
        self.words = [START, END, *sorted({word for name in classes for word in name.split()})]
        self.token = nn.Embedding(len(self.words), WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def tokenize(self, prompts: list[str]) -> torch.Tensor:
        """Return token numbers ``[prompts, LENGTH]``."""
        rows = [[START, *prompt.split(), *[END] * LENGTH][:LENGTH] for prompt in prompts]
        return torch.tensor([[self.words.index(word) for word in row] for row in rows])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return hidden states ``[prompts, LENGTH, channels]``."""
        return self.norm(self.token(tokens) + self.position.weight)

    def save(self, file: Path) -> None:
        weights = {name: weight.cpu().numpy() for name, weight in self.state_dict().items()}
        np.savez(file, words=np.array(self.words), **weights)
