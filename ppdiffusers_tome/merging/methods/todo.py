"""ToDo (Token Downsampling, Smith et al., IJCAI 2024): all tokens give queries, some of the grid keys and values.

Nothing is compared, merged or unmerged: the keys and values of self-attention are those of a regular (or random) choice
of tokens. A ratio of ``1 - 1 / (sx * sy)`` is the paper's: one key in every cell. With less, other tokens of each cell
are kept as well, spread evenly.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import CHOSEN, COMPARES_NOTHING, KEYS_ALONE, Method

METHOD = Method(
    about="queries stay whole; attention gets the keys and values of some tokens only",
    keys=CHOSEN,
    pointless=COMPARES_NOTHING | KEYS_ALONE,
)
