"""Settings of earlier versions that are gone, and their remedies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppdiffusers_tome.errors import ToMeValueError

REMOVED: Mapping[str, str] = {
    "min_similarity": "omit it; a lower ratio merges the most similar tokens alone",
    "reuse_blocks": "omit it; tile=16 and reuse_steps=4 make matching cheaper",
    "proportional": "omit it; method='keys' weights merged keys by itself",
    "cache_slope": "omit it; a skipped step follows 0.75 of the slope",
    "cache_steps": "omit it; a list in cache ends with the last step, which tells how many there are",
    "cpu_attention": "give --cpu-kernels, which computes convolutions too",
    "cache_scheduler": "omit it; choose the steps with the scheduler that generates",
    "families": "give candidates=[...] to tune, a list of settings that it orders itself",
    "method='pool'": "give method='todo', or 'keys' for means of similar keys",
    "method='prune'": "give method='tome'",
    "method='tofu'": "give method='tome'",
    "ratio by level": "give one ratio, and max_downsample for the levels",
}


def refuse_removed(settings: Mapping[str, Any]) -> None:
    """Refuse settings that are gone, and say what replaces them.

    Raises:
        ToMeValueError: one of the settings, or its value, is in ``REMOVED``.
    """
    given = [*settings, f"method='{settings.get('method')}'"]
    if isinstance(settings.get("ratio"), Mapping):
        given.append("ratio by level")
    if found := [name for name in given if name in REMOVED]:
        raise ToMeValueError("; ".join(f"{name} is gone: {REMOVED[name]}" for name in found))
