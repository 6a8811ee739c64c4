"""Token Merging for diffusion models on PaddlePaddle: ``pipe.apply_tome(ratio=0.5)``."""

import zlib  # noqa: F401  Paddle 2.6 ships its own zlib; Python's breaks unless it is imported first
from importlib import import_module
from typing import TYPE_CHECKING

from ppdiffusers_tome.cpu import prepare_cpu
from ppdiffusers_tome.errors import NothingToMergeError, ToMeError, ToMeTypeError, ToMeValueError
from ppdiffusers_tome.install import install, uninstall
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.version import __version__

if TYPE_CHECKING:
    from ppdiffusers_tome.api import ToMeMixin, apply_tome, use_tome
    from ppdiffusers_tome.compilation.api import compile_cpu, uncompile_cpu
    from ppdiffusers_tome.patching.apply import AppliedBlocks, AppliedToMe, get_tome, remove_tome
    from ppdiffusers_tome.patching.shared_copy import shared_copy
    from ppdiffusers_tome.tuning.api import tune
    from ppdiffusers_tome.tuning.results import Target, Trial, Tuned

_LAZY = {
    "patching.apply": ("AppliedBlocks", "AppliedToMe", "get_tome", "remove_tome"),
    "patching.shared_copy": ("shared_copy",),
    "compilation.api": ("compile_cpu", "uncompile_cpu"),
    "api": ("ToMeMixin", "apply_tome", "use_tome"),
    "tuning.results": ("Target", "Trial", "Tuned"),
    "tuning.api": ("tune",),
}

__all__ = [
    "AppliedBlocks", "AppliedToMe", "NothingToMergeError", "Target", "ToMeConfig", "ToMeError", "ToMeMixin",
    "ToMeTypeError", "ToMeValueError", "Trial", "Tuned", "__version__", "apply_tome", "compile_cpu", "get_tome",
    "install", "prepare_cpu", "remove_tome", "shared_copy", "tune", "uncompile_cpu", "uninstall", "use_tome",
]  # fmt: skip


def __getattr__(name: str) -> object:
    # Paddle takes seconds to import, and `ppdiffusers-tome --help` needs none of it.
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    in_tomesd = {"apply_patch": "; it is apply_tome here", "remove_patch": "; it is remove_tome here"}.get(name, "")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{in_tomesd}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


install()
