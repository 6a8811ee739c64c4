"""The removal of ppdiffusers' own port of tomesd from a model."""

from __future__ import annotations

from paddle.nn import Layer


def remove_legacy_port(model: Layer) -> None:
    """Restore the classes and attributes that ppdiffusers' port changed."""
    for layer in model.sublayers(include_self=True):
        info = vars(layer).get("_tome_info")
        if info is None:
            continue
        for hook in info["hooks"]:
            # Not by remove(): in a deep copy that would remove it from the original.
            layer._forward_pre_hooks.pop(hook._hook_id, None)
        if type(layer).__name__.startswith("ToMe") and "_parent" in vars(type(layer)):
            layer.__class__ = vars(type(layer))["_parent"]
        del layer._tome_info
