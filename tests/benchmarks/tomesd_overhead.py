"""tomesd's match, merge and unmerge under PyTorch.

``overhead.py`` runs it with another interpreter, so it needs neither Paddle nor this package.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from tomesd.merge import bipartite_soft_matching_random2d


def main() -> None:
    given = json.loads(sys.argv[1])
    tokens = given["height"] * given["width"]
    noise = np.random.default_rng(0).standard_normal((given["batch"], tokens, given["channels"]), np.float32)
    x, generator = torch.from_numpy(noise), torch.Generator().manual_seed(0)

    def match_tokens() -> tuple:
        num_merged = int(tokens * given["ratio"])
        return bipartite_soft_matching_random2d(
            x, given["width"], given["height"], 2, 2, num_merged, generator=generator
        )

    seconds: dict[str, list[float]] = {"match": [], "merge": [], "unmerge": [], given["step"]: []}
    with torch.no_grad():
        for repeat in range(2 * given["repeats"]):  # every other one is timed, as ours
            ends = [time.perf_counter()]
            merge, unmerge = match_tokens()
            ends.append(time.perf_counter())
            merged = merge(x)
            ends.append(time.perf_counter())
            unmerge(merged)
            ends.append(time.perf_counter())
            step = time.perf_counter()
            for _ in range(given["blocks"]):
                merge, unmerge = match_tokens()
                unmerge(merge(x))
            taken = [after - before for before, after in zip(ends, ends[1:])]  # noqa: B905, RUF007 (any Python)
            for stage, value in zip(seconds, [*taken, time.perf_counter() - step]):  # noqa: B905
                if repeat % 2:
                    seconds[stage].append(value)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
