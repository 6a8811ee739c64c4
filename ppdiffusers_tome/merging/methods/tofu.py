"""ToFu (Token Fusion, Kim et al., WACV 2024): prune in early blocks, merge in late ones, and keep the norm.

Early blocks answer to a mean of tokens quite otherwise than with the mean of their answers, so one token goes on alone
there (the paper's section 3.2). Later the mean does, at the length of the tokens it stands for (section 3.3, MLERP).
Left out: the paper gives the mean the largest length in the group, which takes a maximum by groups that Paddle cannot
compute without sorting; here it is the mean length.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import KEEP, NORM, Method

METHOD = Method(
    about="prunes in the first half of the blocks, merges in the second and keeps the tokens' length",
    combine=lambda depth: KEEP if depth < 0.5 else NORM,
)
