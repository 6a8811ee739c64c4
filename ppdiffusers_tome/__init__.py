"""Token Merging for diffusion models on PaddlePaddle: ``pipe.apply_tome(ratio=0.5)``."""

import zlib  # noqa: F401  Paddle 2.6 brings a zlib of its own; Python's breaks unless it is loaded first
from typing import TYPE_CHECKING

from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.errors import NothingToMergeError, ToMeError, ToMeTypeError, ToMeValueError
from ppdiffusers_tome.install import install, uninstall
from ppdiffusers_tome.version import __version__

if TYPE_CHECKING:
    from ppdiffusers_tome.mixin import (
        AppliedToMe,
        ToMeMixin,
        applied_tome,
        apply_patch,
        apply_tome,
        remove_patch,
        remove_tome,
    )

_LAZY = ("AppliedToMe", "ToMeMixin", "apply_patch", "apply_tome", "applied_tome", "remove_patch", "remove_tome")

__all__ = [
    "AppliedToMe",
    "NothingToMergeError",
    "ToMeConfig",
    "ToMeError",
    "ToMeMixin",
    "ToMeTypeError",
    "ToMeValueError",
    "__version__",
    "applied_tome",
    "apply_patch",
    "apply_tome",
    "install",
    "remove_patch",
    "remove_tome",
    "uninstall",
]


def __getattr__(name: str) -> object:
    # These need Paddle, which takes seconds to import; `ppdiffusers-tome --help` must not wait for it.
    if name in _LAZY:
        from ppdiffusers_tome import mixin

        return getattr(mixin, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


install()
