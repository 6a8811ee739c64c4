"""Token Merging for diffusion models on PaddlePaddle: ``pipe.apply_tome(ratio=0.5)``."""

import zlib  # noqa: F401  Paddle 2.6 brings a zlib of its own; Python's breaks unless it is loaded first
from importlib import import_module
from typing import TYPE_CHECKING

from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.errors import NothingToMergeError, ToMeError, ToMeTypeError, ToMeValueError
from ppdiffusers_tome.install import install, uninstall
from ppdiffusers_tome.version import __version__

if TYPE_CHECKING:
    from ppdiffusers_tome.chunked_attention import (
        ChunkedAttnProcessor,
        disable_chunked_attention,
        enable_chunked_attention,
    )
    from ppdiffusers_tome.mixin import (
        AppliedToMe,
        ToMeMixin,
        applied_tome,
        apply_patch,
        apply_tome,
        remove_patch,
        remove_tome,
    )

_LAZY = {
    "chunked_attention": ("ChunkedAttnProcessor", "disable_chunked_attention", "enable_chunked_attention"),
    "mixin": ("AppliedToMe", "ToMeMixin", "apply_patch", "apply_tome", "applied_tome", "remove_patch", "remove_tome"),
}

__all__ = [
    "AppliedToMe",
    "ChunkedAttnProcessor",
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
    "disable_chunked_attention",
    "enable_chunked_attention",
    "install",
    "remove_patch",
    "remove_tome",
    "uninstall",
]


def __getattr__(name: str) -> object:
    # These need Paddle, which takes seconds to import; `ppdiffusers-tome --help` must not wait for it.
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


install()
