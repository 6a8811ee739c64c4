"""What a layer returned, for caches that hand it out again in later steps instead of calling the layer.

Pyramid Attention Broadcast (``ppdiffusers.hooks``) replaces the ``forward`` of attention, inside ToMe's hooks, and so
keeps what attention made of merged tokens. Whose matching that was is known of the very tensor, for as long as it is
there. (Not as an attribute of it, which Paddle 2.6 does not allow.)
"""

from __future__ import annotations

import weakref

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.matching import Matching

# By the tensor's id, which no other has while it lives.
_made_with: dict[int, tuple[weakref.ref[paddle.Tensor], Matching | None]] = {}


def remember(output: paddle.Tensor, matching: Matching | None) -> None:
    """A layer has just made ``output``, of tokens merged by ``matching`` or, None, of all."""
    if paddle.in_dynamic_mode():
        number = id(output)
        _made_with[number] = weakref.ref(output, lambda _: _made_with.pop(number, None)), matching


def handed_out_again(output: paddle.Tensor) -> bool:
    """Whether a layer that ToMe is attached to returned this very tensor before."""
    return id(output) in _made_with


def matching_of(output: paddle.Tensor) -> Matching | None:
    """What ``remember`` was told."""
    return _made_with.get(id(output), (None, None))[1]


def drop_kept(layer: Layer, *, also_whole: bool = False) -> None:
    """What a cache around a layer keeps fits no more, as when ToMe is taken off it or put on it, and is made anew.

    Args:
        layer: any.
        also_whole: not only what was made of merged tokens.
    """
    registry = vars(layer).get("_diffusers_hook")
    for hook in getattr(registry, "hooks", {}).values():
        kept = getattr(getattr(hook, "state", None), "cache", None)
        first = kept[0] if isinstance(kept, tuple) else kept
        if first is not None and (also_whole or matching_of(first) is not None):
            hook.reset_state(layer)
