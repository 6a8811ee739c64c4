"""ToDo (Token Downsampling, Smith et al., IJCAI 2024): every query is kept, keys and values are downsampled.

No similarities are computed, and nothing is unmerged: the keys and values of self-attention are those of a regular (or
random) choice of tokens. A ratio of ``1 - 1 / (sx * sy)`` is the paper's: one key in every cell. With less, other
tokens of each cell are kept as well, spread evenly.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import CHOSEN, COMPARES_NOTHING, KEYS_ALONE, Method

METHOD = Method(
    about="key/value downsampling: all queries, the keys and values of some tokens",
    keys=CHOSEN,
    pointless=COMPARES_NOTHING | KEYS_ALONE,
)
