"""ToMe's methods on ppdiffusers' classes, in place of ppdiffusers' own port.

Importing ppdiffusers takes 10 seconds and more, so importing this package does not import it: the methods are put on
ppdiffusers' classes at once where it is imported already, otherwise as soon as it is.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

_ABSENT = object()
# By class and name: the attribute that was there before, and ours.
_replaced: dict[tuple[type, str], tuple[Any, Any]] = {}


def install() -> None:
    """Put ``apply_tome``, ``remove_tome`` and ``tome`` on ppdiffusers' pipelines and models.

    Calling it again changes nothing, but for classes whose ``apply_tome`` or ``__call__`` was replaced meanwhile.
    """
    if "ppdiffusers" in sys.modules:
        _patch_classes()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def uninstall() -> None:
    """Restore ppdiffusers' classes.

    Attributes that somebody else replaced since ``install`` stay. Models with ToMe keep it; see ``remove_tome``.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AfterImport)]
    while _replaced:
        (cls, name), (original, ours) = _replaced.popitem()
        if vars(cls).get(name) is not ours:
            continue
        if original is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, original)


def _patch_classes() -> None:
    """Put ToMe's methods on ppdiffusers' classes, and track their calls."""
    from paddle.nn import Layer
    from ppdiffusers.models.modeling_utils import ModelMixin
    from ppdiffusers.pipelines.pipeline_utils import DiffusionPipeline

    from ppdiffusers_tome.api import ToMeMixin

    # ppdiffusers puts its port on every nn.Layer, so it is replaced there too: `pipe.unet.mid_block.apply_tome()` must
    # not call the port. `tome` is a property, for ppdiffusers' classes only.
    for cls, names in (
        (Layer, ("apply_tome", "remove_tome")),
        (ModelMixin, ("tome",)),
        (DiffusionPipeline, ("apply_tome", "remove_tome", "tome")),
    ):
        for name in names:
            _replace(cls, name, vars(ToMeMixin)[name])
    # ppdiffusers imports most pipelines on first use, so classes of the future are tracked, too.
    _replace(DiffusionPipeline, "__init_subclass__", _INIT_SUBCLASS)
    for pipeline in _list_subclasses(DiffusionPipeline):
        _track_calls(pipeline)


def _replace(cls: type, name: str, value: Any) -> None:
    original = vars(cls).get(name, _ABSENT)
    if original is not value:
        _replaced[cls, name] = original, value
        setattr(cls, name, value)


def _track_calls(cls: type) -> None:
    """Track calls of a pipeline class."""
    owner = next((base for base in cls.__mro__ if "__call__" in vars(base)), None)
    # A call inherited from another pipeline is tracked there; one inherited from a mixin is not.
    if owner is not None and not _is_tracked(owner):
        _replace(cls, "__call__", _track_call(vars(owner)["__call__"]))


def _is_tracked(owner: type) -> bool:
    """Return whether the ``__call__`` in a class is this package's."""
    return _replaced.get((owner, "__call__"), (None, None))[1] is vars(owner)["__call__"]


def _track_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a pipeline's ``__call__`` to make each call current while it runs."""
    from ppdiffusers_tome.patching.call_stack import CALL_STACK
    from ppdiffusers_tome.patching.state.pipeline_call import PipelineCall

    @functools.wraps(call)
    def run_call(pipe: Any, /, *args: Any, **kwargs: Any) -> Any:
        outer, pipeline_call, is_complete = CALL_STACK.pipeline_call, PipelineCall(pipe), False
        try:
            CALL_STACK.pipeline_call = pipeline_call
            output = call(pipe, *args, **kwargs)
            is_complete = True
            return output
        finally:
            CALL_STACK.pipeline_call = outer
            pipeline_call.end(is_complete=is_complete)

    return run_call


def _track_new_class(cls: type, **kwargs: Any) -> None:
    """Track calls of a pipeline class that is defined from now on."""
    from ppdiffusers.pipelines.pipeline_utils import DiffusionPipeline

    super(DiffusionPipeline, cls).__init_subclass__(**kwargs)
    _track_calls(cls)


_INIT_SUBCLASS: Any = classmethod(_track_new_class)


def _list_subclasses(cls: type) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _list_subclasses(subclass)


class _AfterImport(importlib.abc.MetaPathFinder):
    """A finder that patches ppdiffusers' classes once its import succeeds."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "ppdiffusers":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            run_module = spec.loader.exec_module

            def run_and_patch(module: ModuleType) -> None:
                run_module(module)
                sys.meta_path.remove(self)
                _patch_classes()

            spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec
