"""Caches over steps of ppdiffusers' own, such as Pyramid Attention Broadcast, on layers that ToMe is applied to.

Such a cache replaces the ``forward`` of attention and returns an earlier result in some steps. ToMe's overrides stand
inside of it (see ``overrides.method``), so it keeps results for all tokens, whatever merged when they were computed.
"""

from __future__ import annotations

from typing import Any

from paddle.nn import Layer


def reset_step_caches(layer: Layer) -> None:
    """Drop the results that caches on a layer keep; they compute new ones at the next call."""
    for cache in list(getattr(vars(layer).get("_diffusers_hook"), "hooks", {}).values()):
        if getattr(getattr(cache, "state", None), "cache", None) is not None:
            cache.reset_state(layer)


def first_output(output: Any) -> Any:
    """Return the output of a layer, or the first of several."""
    return output[0] if isinstance(output, (tuple, list)) else output


def replace_first_output(output: Any, first: Any) -> Any:
    """Return the output of a layer with another tensor in place of its first."""
    if isinstance(output, list):
        return [first, *output[1:]]
    return (first, *output[1:]) if isinstance(output, tuple) else first
