"""ToFu (Token Fusion, Kim et al., WACV 2024): prune in early blocks, merge in late ones, and keep the norm.

In early blocks f(mean of tokens) is far from the mean of f(tokens), so one token of a group is kept there (the paper's
section 3.2). In later blocks it is close, so tokens merge, and the mean gets the norm of the tokens it stands for
(section 3.3, MLERP). Left out: the paper gives the mean the largest norm in the group, which takes a maximum by groups
that Paddle cannot compute without sorting; here it is the mean norm.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import KEEP, NORM, Method

METHOD = Method(
    about="prunes in the first half of the blocks, merges in the second and keeps the norm of the tokens",
    combine=lambda depth: KEEP if depth < 0.5 else NORM,
)
