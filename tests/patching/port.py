"""ppdiffusers' own port of tomesd, whose methods ours stand in for."""

from typing import Any

import ppdiffusers_tome


def apply_port(model_or_pipe: Any, **settings: Any) -> Any:
    """The port's own ``apply_tome``."""
    return _call(model_or_pipe, "apply_tome", **settings)


def remove_port(model_or_pipe: Any) -> Any:
    """The port's own ``remove_tome``."""
    return _call(model_or_pipe, "remove_tome")


def _call(model_or_pipe: Any, name: str, **settings: Any) -> Any:
    ppdiffusers_tome.uninstall()
    try:
        method = getattr(model_or_pipe, name)
        assert method.__func__.__module__ == "ppdiffusers.patches.tomesd_patch_utils"
        return method(**settings)
    finally:
        ppdiffusers_tome.install()
