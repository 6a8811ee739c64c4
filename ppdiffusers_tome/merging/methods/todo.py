"""ToDo (Token Downsampling, Smith et al., IJCAI 2024): every token asks, but only some of the grid are asked.

Nothing is compared, merged or unmerged: the keys and values of self-attention are those of a regular (or random) choice
of tokens. A ratio of ``1 - 1 / (sx * sy)`` is the paper's: one key in every cell. With less, other tokens of each cell
are kept as well, spread evenly.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import Method

_COMPARES_NOTHING = "this method compares no tokens"

METHOD = Method(
    about="queries stay whole; attention gets the keys and values of some tokens only",
    combine=None,
    pointless={
        "tile": _COMPARES_NOTHING,
        "reuse_steps": _COMPARES_NOTHING,
        "reuse_blocks": _COMPARES_NOTHING,
        "min_similarity": _COMPARES_NOTHING,
        "merge_crossattn": "the keys of cross-attention are the text's",
        "merge_mlp": "a feed-forward layer has no keys",
    },
)
