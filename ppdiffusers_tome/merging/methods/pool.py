"""Pooled keys: as ToDo (``todo.py``), with the mean of a cell in the place of one of its tokens.

A mean stands for all of its cell, where one token stands for itself; it takes a pass over the tokens more. At the full
ratio, ``1 - 1 / (sx * sy)``, every key stands for as many tokens, so attention needs no mask. With less, some cells are
pooled, spread evenly, and count as many times as they hold tokens.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import COMPARES_NOTHING, KEYS_ALONE, POOLED, Method

METHOD = Method(
    about="queries stay whole; attention gets the mean keys and values of cells",
    keys=POOLED,
    proportional=True,
    pointless=COMPARES_NOTHING | KEYS_ALONE,
)
