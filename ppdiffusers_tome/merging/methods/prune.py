"""Pruning: of a group of similar tokens the destination alone is kept; afterwards all get its result.

The sources are dropped, not averaged in, so no token is one that the model could not have made. The groups are ToMe's.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import KEEP, Method

METHOD = Method(
    about="of similar tokens the destination alone is kept; afterwards all get its result",
    combine=lambda depth: KEEP,
)
