"""Merged keys: like tokens give one key and one value, and all tokens give queries.

What merging costs a picture comes mostly from queries: tokens that merge leave attention with one result. Here they
keep their own, and what they attend to is merged by ToMe's matching (``tome.py``), each group counting as many times as
it holds tokens (proportional attention: Token Merging: Your ViT But Faster, Bolya et al. 2023, section 3). Attention's
cost falls with the ratio, not with its square, so ratios are higher: 0.9375 with a stride of 4 by 4.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import KEYS_ALONE, MERGED, Method

METHOD = Method(
    about="queries stay whole; like tokens give one key and value, which counts as many times",
    keys=MERGED,
    proportional=True,
    pointless=KEYS_ALONE,
)
