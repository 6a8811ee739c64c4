"""Pruning: of a group of like tokens the destination goes on alone, and all get its result.

The sources are dropped, not averaged in, so no token is one that the model could not have made. The groups are ToMe's.
"""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import KEEP, Method

METHOD = Method(about="of like tokens one goes on alone, and all get its result", combine=lambda depth: KEEP)
