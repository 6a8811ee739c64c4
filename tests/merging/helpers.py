"""Helpers of the tests of merging: groups of tokens, and how many examples a property is tried on."""

import numpy as np
from hypothesis import HealthCheck, Phase, settings

from ppdiffusers_tome.merging.matching import Matching

# The same examples every time, on every machine, and no file of those that failed.
PROPERTY = settings(
    max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)  # fmt: skip


def groups(matching: Matching) -> list[np.ndarray]:
    """Token numbers of every row of the merged sequence, counted over the batch."""
    owner = matching.owner.numpy()
    return [np.flatnonzero(owner == row) for row in range(matching.batch * matching.num_left)]
