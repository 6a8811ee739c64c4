"""Write a tokenizer in CLIP's format that knows chosen words as tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

START, END = "<|startoftext|>", "<|endoftext|>"


def write_tokenizer_files(folder: Path, words: Sequence[str]) -> tuple[str, str]:
    """Write ``vocab.json`` and ``merges.txt``, and return their paths; all other words are spelt."""
    split = {word: (*word[:-1], word[-1] + "</w>") for word in words}
    merges: list[tuple[str, str]] = []
    while any(len(parts) > 1 for parts in split.values()):
        pairs = Counter(pair for parts in split.values() for pair in pairwise(parts))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word, parts in split.items():
            joined, start = [], 0
            while start < len(parts):
                end = start + (2 if parts[start : start + 2] == best else 1)
                joined.append("".join(parts[start:end]))
                start = end
            split[word] = tuple(joined)
    letters = [chr(c) for c in range(33, 127)]
    tokens = [*letters, *(c + "</w>" for c in letters), *("".join(m) for m in merges), START, END]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, merged = folder / "vocab.json", folder / "merges.txt"
    vocabulary.write_text(json.dumps({token: i for i, token in enumerate(dict.fromkeys(tokens))}))
    merged.write_text("#version: 0.2\n" + "\n".join(" ".join(m) for m in merges) + "\n")
    return str(vocabulary), str(merged)
