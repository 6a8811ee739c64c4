"""What attention returned, for caches that hand it out again in later steps instead of computing it.

Pyramid Attention Broadcast (``ppdiffusers.hooks``) replaces the ``forward`` of attention, inside ToMe's hooks, and so
keeps what attention made of merged tokens. What merged there is known of the very tensor, for as long as it is there.
(Not as an attribute of it, which Paddle 2.6 does not allow.)
"""

from __future__ import annotations

import weakref
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.reduction import TokenReduction

# By the tensor's id, which no other has while it lives.
_made_with: dict[int, tuple[weakref.ref[paddle.Tensor], TokenReduction | None]] = {}


def remember(layer: Layer, output: Any, matching: TokenReduction | None) -> None:
    """A layer has just made ``output`` where ``matching`` merged or, None, nothing did. Only a cache asks for it."""
    if _caches(layer) and isinstance(output, paddle.Tensor) and paddle.in_dynamic_mode():
        number = id(output)
        _made_with[number] = weakref.ref(output, lambda _: _made_with.pop(number, None)), matching


def handed_out_again(output: Any) -> bool:
    """Whether a layer that ToMe is attached to, and in which there is a cache, returned this very tensor before."""
    return id(output) in _made_with


def matching_of(output: Any) -> TokenReduction | None:
    """What ``remember`` was told."""
    return _made_with.get(id(output), (None, None))[1]


def reset_step_caches(layer: Layer, *, also_whole: bool = False) -> None:
    """What a cache in a layer keeps fits no more, as when ToMe is taken off it or put on it, and is made anew.

    Args:
        layer: any.
        also_whole: not only what was made where something merged.
    """
    for cache in _caches(layer):
        kept = getattr(getattr(cache, "state", None), "cache", None)
        first = first_of(kept)
        if first is not None and (also_whole or matching_of(first) is not None):
            cache.reset_state(layer)


def first_of(output: Any) -> Any:
    """What a layer returned, or the first of several."""
    return output[0] if isinstance(output, (tuple, list)) else output


def _caches(layer: Layer) -> list[Any]:
    """Hooks of ppdiffusers' own kind, some of which are caches."""
    return list(getattr(vars(layer).get("_diffusers_hook"), "hooks", {}).values())
