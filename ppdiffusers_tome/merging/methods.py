"""The merging methods, each a row of ``METHODS``. Needs no Paddle.

Three merge tokens: a group of similar tokens becomes one token, and all of the group get its result. Three keep every
query and reduce the keys and values of self-attention alone, which costs less quality; the cost of attention then falls
with the fraction of keys that remain, not with its square, so their ratios are higher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# How the tokens of a group become one token, see ``Matching.reduce``.
COMBINE_MODES = MEAN, KEEP, NORM = "mean", "keep", "norm"
# How keys and values are reduced, see ``kv_reduction``.
CHOSEN, POOLED, MERGED = "chosen", "pooled", "merged"


@dataclass(frozen=True)
class Method:
    """A way to have attention see fewer tokens.

    Attributes:
        about: one clause, for tables and help.
        combine: how a group becomes one token, by the depth of the block: 0 for the first block that merges in a call
            of the denoiser, 1 for the last. None where only keys and values are reduced.
        key_reduction: how keys and values are reduced; None where tokens merge.
        proportional: whether group sizes weight attention by default.
        unsupported_settings: settings that must stay at their defaults, each with the reason as a clause.
    """

    about: str
    combine: Callable[[float], str] | None = None
    key_reduction: str | None = None
    proportional: bool = False
    unsupported_settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def keeps_queries(self) -> bool:
        """True where every query stays and only keys and values are reduced."""
        return self.key_reduction is not None

    @property
    def compares(self) -> bool:
        """True where similarities are computed, so that groups of similar tokens exist."""
        return self.key_reduction in (None, MERGED)


_NO_SIMILARITIES = dict.fromkeys(
    ("tile", "reuse_steps", "reuse_blocks", "min_similarity"), "this method computes no similarities"
)
_KEYS_ONLY = {
    "merge_crossattn": "the keys of cross-attention are the text's",
    "merge_mlp": "a feed-forward layer has no keys",
}

_NOTHING_RANDOM = dict.fromkeys(("use_rand", "seed"), "this method chooses nothing at random")

METHODS: Mapping[str, Method] = {
    # Every token gets a result of its own; keys merge by ToMe's matching, weighted by group size (proportional
    # attention: Token Merging: Your ViT But Faster, Bolya et al. 2023, section 3).
    "keys": Method(
        about="all queries; the keys and values of similar tokens merge, each weighted by its number of tokens",
        key_reduction=MERGED,
        proportional=True,
        unsupported_settings=_KEYS_ONLY,
    ),
    # ToDo with the mean of each cell in place of one of its tokens.
    "pool": Method(
        about="all queries; the mean keys and values of each cell of the stride",
        key_reduction=POOLED,
        proportional=True,
        unsupported_settings=_NO_SIMILARITIES | _KEYS_ONLY | _NOTHING_RANDOM,
    ),
    # The sources are dropped, not averaged in, so every token is one that the model made.
    "prune": Method(
        about="of similar tokens only the destination is kept; afterwards all get its result",
        combine=lambda depth: KEEP,
    ),
    # Token Downsampling (Smith et al., IJCAI 2024): keys and values of a regular or random choice of tokens.
    "todo": Method(
        about="key/value downsampling: all queries, the keys and values of some tokens",
        key_reduction=CHOSEN,
        unsupported_settings=_NO_SIMILARITIES | _KEYS_ONLY,
    ),
    # Token Fusion (Kim et al., WACV 2024): in early blocks f(mean of tokens) is far from the mean of f(tokens), so a
    # group keeps one token there (section 3.2); later the mean gets the norm of its tokens (section 3.3, MLERP). The
    # paper takes the largest norm, which Paddle cannot compute by groups without sorting; here it is the mean norm.
    "tofu": Method(
        about="prunes in the first half of the blocks, merges in the second and keeps the norm of the tokens",
        combine=lambda depth: KEEP if depth < 0.5 else NORM,
    ),
    # Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023).
    "tome": Method(about="similar tokens become their mean; afterwards all get its result", combine=lambda depth: MEAN),
}
