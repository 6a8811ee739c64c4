"""Caches over steps of ppdiffusers, such as Pyramid Attention Broadcast.

Such a cache replaces the ``forward`` of attention and returns an earlier result in some steps. It calls ToMe's
overrides (see ``overrides.method``), so its results have all tokens, also those that merged.
"""

from __future__ import annotations

from paddle.nn import Layer


def reset_step_caches(layer: Layer) -> None:
    """Drop the results in the caches over steps of a layer."""
    for cache in list(getattr(vars(layer).get("_diffusers_hook"), "hooks", {}).values()):
        if getattr(getattr(cache, "state", None), "cache", None) is not None:
            cache.reset_state(layer)
