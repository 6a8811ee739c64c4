"""ToMe's bipartite soft matching (Token Merging for Fast Stable Diffusion, Bolya & Hoffman 2023, section 3).

Every source finds its most similar destination (cosine) among all; the most similar sources merge into theirs.
"""

from __future__ import annotations

import paddle

from ppdiffusers_tome.merging.bipartite import merge_most_similar
from ppdiffusers_tome.merging.gradients import disable_gradients
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.merging.partition import Partition
from ppdiffusers_tome.merging.similarity import find_nearest


@disable_gradients
def match(
    x: paddle.Tensor, partition: Partition, num_merged: int, min_similarity: float | None = None
) -> Matching | None:
    """Decide which tokens merge.

    Args:
        x: ``[batch, tokens, channels]``, the block's input, any float type.
        partition: the sources and destinations of the grid.
        num_merged: how many sources merge, ``1 <= num_merged <= S``.
        min_similarity: the least cosine at which they do; fewer may then merge.

    Returns:
        The matching of the sources with their destinations; None where none are alike enough.
    """
    similarity, best = find_nearest(x, partition.sources, partition.destinations)
    return merge_most_similar(
        similarity, best, partition.sources, partition, num_tokens=x.shape[1], num_merged=num_merged,
        min_similarity=min_similarity,
    )  # fmt: skip
