"""The merging methods, each a row of ``METHODS``. Needs no Paddle.

``tome`` merges tokens: a group of similar tokens becomes one token, and all of the group get its result. The others
keep every query and reduce the keys and values of self-attention alone, which costs less quality; the cost of attention
then falls with the fraction of keys that remain, not with its square, so their ratios are higher.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Method:
    """A way to have attention see fewer tokens."""

    about: str  # one clause, for pages that list the methods
    keeps_queries: bool = False  # True where every query stays and only keys and values are reduced
    compares: bool = True  # True where similarities are computed, so that groups of similar tokens exist
    uses_group_sizes: bool = False  # True where group sizes weight merged keys
    # Settings that must stay at their defaults, each with the reason as a clause.
    unsupported_settings: Mapping[str, str] = field(default_factory=dict)


_KEYS_ONLY = {
    "merge_crossattn": "the keys of cross-attention are the text's",
    "merge_mlp": "a feed-forward layer has no keys",
}

METHODS: Mapping[str, Method] = {
    # Every token gets a result of its own; keys merge by ToMe's matching, weighted by group size (proportional
    # attention: Token Merging: Your ViT But Faster, Bolya et al. 2023, section 3).
    "keys": Method(
        about="all queries; the keys and values of similar tokens merge, each weighted by its number of tokens",
        keeps_queries=True,
        uses_group_sizes=True,
        unsupported_settings=_KEYS_ONLY,
    ),
    # Token Downsampling (Smith et al., IJCAI 2024): keys and values of a regular or random choice of tokens.
    "todo": Method(
        about="key/value downsampling: all queries, the keys and values of some tokens",
        keeps_queries=True,
        compares=False,
        unsupported_settings=_KEYS_ONLY | dict.fromkeys(("tile", "reuse_steps"), "this method compares no tokens"),
    ),
    # Token Merging for Fast Stable Diffusion (Bolya & Hoffman 2023).
    "tome": Method(about="similar tokens become their mean; afterwards all get its result"),
}
