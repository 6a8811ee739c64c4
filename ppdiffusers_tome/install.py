"""Put ToMe's methods on ppdiffusers' classes, in place of the port that ppdiffusers puts there, and take them off.

Importing ppdiffusers takes 10 seconds and more, so importing this package does not: if ppdiffusers is there already
its classes are given the methods at once, otherwise as soon as somebody imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

_METHODS = ("apply_tome", "remove_tome", "tome")
_ABSENT = object()
_originals: dict[tuple[type, str], Any] = {}


def install() -> None:
    """Give every ppdiffusers pipeline and model ``apply_tome``, ``remove_tome`` and ``tome``; again is harmless."""
    if "ppdiffusers" in sys.modules:
        _install_now()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def uninstall() -> None:
    """Put ppdiffusers' classes back as they were. Models that have ToMe keep it; see ``remove_tome``."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AfterImport)]
    while _originals:
        (cls, name), original = _originals.popitem()
        if original is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, original)
    if "ppdiffusers" in sys.modules:
        from ppdiffusers.pipelines.pipeline_utils import DiffusionPipeline

        for pipeline in _subclasses(DiffusionPipeline):
            _untrack_calls(pipeline)


def _install_now() -> None:
    from paddle.nn import Layer
    from ppdiffusers.models.modeling_utils import ModelMixin
    from ppdiffusers.pipelines.pipeline_utils import DiffusionPipeline

    from ppdiffusers_tome.api import ToMeMixin

    # The port puts its methods on every nn.Layer, so they are replaced there too: a part of a model,
    # `pipe.unet.mid_block.apply_tome()`, must not reach the port. `tome` is a property, for our own classes only.
    for cls, names in ((Layer, _METHODS[:2]), (ModelMixin, _METHODS[2:]), (DiffusionPipeline, _METHODS)):
        for name in names:
            _put(cls, name, vars(ToMeMixin)[name])
    # Classes that there are, and through ``__init_subclass__`` those to come: ppdiffusers imports its pipelines when
    # they are asked for.
    for cls in _subclasses(DiffusionPipeline):
        _track_calls(cls)

    def init_subclass(cls: type, **kwargs: Any) -> None:
        super(DiffusionPipeline, cls).__init_subclass__(**kwargs)
        _track_calls(cls)

    _put(DiffusionPipeline, "__init_subclass__", classmethod(init_subclass))


def _put(cls: type, name: str, value: Any) -> None:
    _originals.setdefault((cls, name), vars(cls).get(name, _ABSENT))
    setattr(cls, name, value)


def _track_calls(cls: type) -> None:
    """Let calls of a pipeline class be known for as long as they run, see ``pipeline_call``."""
    from ppdiffusers_tome.patching.state.pipeline_call import is_tracked, track_call

    owner = next((base for base in cls.__mro__ if "__call__" in vars(base)), None)
    # One that is inherited from another pipeline is told of there; not so one from a mixin.
    if owner is not None and not is_tracked(vars(owner)["__call__"]):
        call = track_call(vars(owner)["__call__"])
        call.__dict__["inherited"] = owner is not cls
        cls.__call__ = call  # type: ignore[method-assign]


def _untrack_calls(cls: type) -> None:
    from ppdiffusers_tome.patching.state.pipeline_call import is_tracked

    call: Any = vars(cls).get("__call__")
    if not is_tracked(call):  # the user's own, maybe since
        return
    if call.inherited:
        del cls.__call__
    else:
        cls.__call__ = call.__wrapped__  # type: ignore[method-assign]


def _subclasses(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Watches for the import of ppdiffusers, lets it happen, and installs; an import that fails is tried again."""

    searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "ppdiffusers" or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            run_module = spec.loader.exec_module

            def run_then_install(module: ModuleType) -> None:
                run_module(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _install_now()

            spec.loader.exec_module = run_then_install  # type: ignore[method-assign]
        return spec
