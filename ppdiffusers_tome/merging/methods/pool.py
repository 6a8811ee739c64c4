"""Pooled keys: as ToDo (``todo.py``), with the mean of a cell instead of one of its tokens.

A mean represents its whole cell, where one token represents itself; it takes one more pass over the tokens. At the full
ratio, ``1 - 1 / (sx * sy)``, every key stands for equally many tokens, so attention needs no mask. With less, some
cells are pooled, spread evenly, and count as many times as they hold tokens.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import COMPARES_NOTHING, KEYS_ALONE, POOLED, Method

METHOD = Method(
    about="all queries; the mean keys and values of each cell of the stride",
    keys=POOLED,
    proportional=True,
    pointless=COMPARES_NOTHING | KEYS_ALONE,
)
