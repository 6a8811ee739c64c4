"""What tells one merging method from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# How the tokens of a group become one, see ``Matching.merge``.
WAYS = MEAN, KEEP, NORM = "mean", "keep", "norm"


@dataclass(frozen=True)
class Method:
    """A way to have attention see fewer tokens.

    Attributes:
        about: one clause, for tables and help.
        combine: how groups of tokens become one in a block, from the block's depth: 0 for the first block that merges
            in a call of the denoiser, 1 for the last. None: no tokens are grouped; queries stay whole, and attention
            gets the keys and values of some tokens only.
        pointless: settings that must stay at their defaults, each with the reason as a clause.
    """

    about: str
    combine: Callable[[float], str] | None
    pointless: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys_only(self) -> bool:
        """True where queries stay whole."""
        return self.combine is None
