"""What tells one merging method from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# How the tokens of a group become one, see ``Matching.merge``.
WAYS = MEAN, KEEP, NORM = "mean", "keep", "norm"
# How there come to be fewer keys and values, see ``merging/keys``.
CHOSEN, POOLED, MERGED = "chosen", "pooled", "merged"


@dataclass(frozen=True)
class Method:
    """A way to have attention see fewer tokens.

    Attributes:
        about: one clause, for tables and help.
        combine: how groups of tokens become one in a block, from the block's depth: 0 for the first block that merges
            in a call of the denoiser, 1 for the last. None where ``keys`` says what happens.
        keys: every query is kept, and this is how there come to be fewer keys and values; None where tokens merge.
        proportional: whether sizes of groups count in attention unless settings say otherwise.
        pointless: settings that must stay at their defaults, each with the reason as a clause.
    """

    about: str
    combine: Callable[[float], str] | None = None
    keys: str | None = None
    proportional: bool = False
    pointless: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys_only(self) -> bool:
        """True where every query is kept."""
        return self.keys is not None

    @property
    def compares(self) -> bool:
        """True where similarities are computed, so that there are groups of similar tokens."""
        return self.keys in (None, MERGED)


_NOTHING_COMPARED = "this method computes no similarities"
COMPARES_NOTHING = dict.fromkeys(("tile", "reuse_steps", "reuse_blocks", "min_similarity"), _NOTHING_COMPARED)
KEYS_ALONE = {
    "merge_crossattn": "the keys of cross-attention are the text's",
    "merge_mlp": "a feed-forward layer has no keys",
}
