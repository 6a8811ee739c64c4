"""Merged keys: every query is kept, the keys and values of similar tokens merge.

Most of what merging costs a picture is due to merged queries: their tokens get one result of attention. Here every
token gets its own, and what it attends to is merged by ToMe's matching (``tome.py``), each group counting as many times
as it holds tokens (proportional attention: Token Merging: Your ViT But Faster, Bolya et al. 2023, section 3). The cost
of attention falls with the share of keys that are left, not with its square, so ratios are higher: 0.9375 with a stride
of 4 by 4.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import KEYS_ALONE, MERGED, Method

METHOD = Method(
    about="all queries; the keys and values of similar tokens merge, and each counts as often as it has tokens",
    keys=MERGED,
    proportional=True,
    pointless=KEYS_ALONE,
)
