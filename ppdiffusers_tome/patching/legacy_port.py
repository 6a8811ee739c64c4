"""ppdiffusers' own port of tomesd: whether it is on a model, and how to undo what it did there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle.nn import Layer


def has_legacy_port(model: Layer) -> bool:
    """Whether ppdiffusers' port is on a model."""
    return any("_tome_info" in vars(layer) for layer in model.sublayers(include_self=True))


def remove_legacy_port(model: Layer) -> None:
    """Give a model that ppdiffusers' port patched its own classes and attributes back; harmless on any other."""
    for layer in model.sublayers(include_self=True):
        info = vars(layer).get("_tome_info")
        if info is None:
            continue
        for hook in info["hooks"]:
            # Not by remove(): in a deep copy that would take it off the model which was copied.
            layer._forward_pre_hooks.pop(hook._hook_id, None)
        if type(layer).__name__.startswith("ToMe") and "_parent" in vars(type(layer)):
            layer.__class__ = vars(type(layer))["_parent"]
        del layer._tome_info
