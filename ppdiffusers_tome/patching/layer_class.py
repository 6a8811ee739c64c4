"""Layers with ToMe: their methods run overrides.

A layer with ToMe gets a class made from its own, as in tomesd, with the same name and module. ``forward`` of that
class runs the overrides that the layer holds, and otherwise the original. So hooks of the user run outside and see all
tokens, keywords arrive on every Paddle, ``try``/``finally`` ends a call even after KeyboardInterrupt, and a deep copy
or pickle of a model carries its ToMe. A function of the user in place of ``forward`` runs inside if it was there
before, and around if it came later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import paddle
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.patching.paddle_compat import FALLBACK, convert_while_tracing, require_whole_graph

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# The methods that overrides replace.
_REPLACEABLE = ("forward", "prepare_attention_mask", "get_attention_scores")
# The attribute of a layer that holds, by method, what runs in its place: an ``Original`` and the overrides around it,
# outermost last.
_FUNCTIONS = "_ppdiffusers_tome"


class Original:
    """The user's function, or for None the class's method, inside of overrides."""

    def __init__(self, layer: Layer, method: str, function: Callable[..., Any] | None = None) -> None:
        self.layer, self.method, self.function = layer, method, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.function
        if function is None:
            function = getattr(find_plain_class(self.layer), self.method).__get__(self.layer)
        return (function if paddle.in_dynamic_mode() else convert_while_tracing(function))(*args, **kwargs)


class Override:
    """The function in place of a layer's method in its denoiser's calls.

    A subclass defines ``run``, which gets the running call and the arguments and calls ``call_original``. Where none
    runs, the original does. Overrides are copied and pickled with their layer.

    Attributes:
        method: the name of the method.
        runs_in: whose call ``run`` gets: "call" of the denoiser, or of the "block" or merge "point" around the layer.
        state: of the denoiser.
        layer: the layer.
        block: the override of the block that this belongs to; None where it serves several blocks.
    """

    method: ClassVar[str] = "forward"
    runs_in: ClassVar[str] = "call"
    # True if this moves to a layer that wraps its own, as a LoRA wraps ``to_k``.
    follows_wrappers: ClassVar[bool] = False

    def __init__(self, state: DenoiserState, layer: Layer) -> None:
        self.state, self.layer = state, layer
        self.block: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {type(self.layer).__name__}.{self.method}, {self.state.config.summary}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = getattr(self.state.find_frame(), self.runs_in, None)
        return self.call_original(*args, **kwargs) if call is None else self.run(call, *args, **kwargs)

    def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the method."""
        raise NotImplementedError

    def call_original(self, *args: Any, **kwargs: Any) -> Any:
        """Call what this runs around."""
        functions = tuple(vars(self.layer).get(_FUNCTIONS, {}).get(self.method, ()))
        inner = next((inside for inside, around in pairwise(functions) if around is self), None)
        if inner is None:  # another thread took this off after it was found
            inner = getattr(self.layer, self.method)
        return inner(*args, **kwargs)

    def put(self) -> None:
        """Store this on its layer, around what is there."""
        layer = self.layer
        if not is_overridden(layer):
            layer.__class__ = _class_with_overrides(find_plain_class(layer))
        functions = vars(layer).setdefault(_FUNCTIONS, {})
        if self.method not in functions:
            functions[self.method] = [Original(layer, self.method, vars(layer).pop(self.method, None))]
        functions[self.method].append(self)

    def take_off(self) -> None:
        """Remove this from its layer, which the last one restores."""
        if self in list_overrides(self.layer):
            vars(self.layer)[_FUNCTIONS][self.method].remove(self)
            restore_class(self.layer)

    def follow(self, layer: Layer) -> None:
        """Move this to the layer that replaced its own in the model."""
        wraps = any(inner is self.layer for inner in layer.sublayers())
        # Where the new layer wraps this one's and calls it, an override of a whole attention stays.
        if not wraps or self.follows_wrappers:
            self.take_off()
            self.layer = layer
            self.put()


def is_overridden(layer: Layer) -> bool:
    """Return whether a layer has ToMe, and other code gave it no class since."""
    return _FUNCTIONS in vars(layer) and "_plain_class" in vars(type(layer))


def list_overrides(layer: Layer) -> list[Override]:
    """List the overrides of all methods of a layer, outermost first."""
    return [override for functions in vars(layer).get(_FUNCTIONS, {}).values() for override in functions[:0:-1]]


def walk_overrides(model: Layer) -> Iterator[Override]:
    """Yield the overrides of all layers of a model or part."""
    for layer in model.sublayers(include_self=True):
        yield from list_overrides(layer)


def list_user_functions(layer: Layer) -> list[Any]:
    """List the user's functions around and inside of a layer's overrides."""
    return [each for each in (vars(layer).get("forward"), find_user_function(layer)) if each is not None]


def find_user_function(layer: Layer, method: str = "forward") -> Any:
    """Return the user's function inside of a layer's overrides, or None."""
    functions = vars(layer).get(_FUNCTIONS, {}).get(method)
    return functions[0].function if functions else None


def find_plain_class(layer: Layer) -> Any:
    """Return the class of a layer without ToMe."""
    return vars(type(layer)).get("_plain_class", type(layer))


# One for each class, as ``to_static`` and pickle compare classes and functions.
@cache
def _class_with_overrides(cls: Any) -> type:
    """Return the subclass whose methods run overrides."""
    methods = {name: _run_overrides(cls, name) for name in _REPLACEABLE if hasattr(cls, name)}
    replaced: dict[str, Any] = {}  # the functions of the class that somebody replaced

    class PlainMethods(type(cls)):  # type: ignore[misc]
        """The metaclass whose attributes are those of the original class.

        ``type(model).forward``, which caches over steps read and replace, is the original; a layer finds the new one.
        """

        def __setattr__(self, name: str, value: Any) -> None:
            if name in methods and value is methods[name]:  # ours, found in the ``__dict__``, as mock.patch does
                value = replaced.pop(name, getattr(cls, name))
            elif name in methods:
                replaced.setdefault(name, getattr(cls, name))
            setattr(cls, name, value)

        def __delattr__(self, name: str) -> None:
            delattr(cls, name)

    def set_attribute(layer: Layer, name: str, value: Any) -> None:
        """Set an attribute, or drop the layer's function for the class's method."""
        is_own = name in methods and getattr(value, "__self__", None) is layer
        function = getattr(value, "__func__", None) if is_own else None
        if is_own and function is getattr(cls, name):
            _drop_user_function(layer, name)  # as a hook from before does it that goes, of ``enable_model_cpu_offload``
        elif is_own and function is methods[name]:
            vars(layer).pop(name, None)  # as what came after ToMe does it: a hook that goes, Paddle where it traced
            restore_class(layer)
        elif _wraps(find_user_function(layer, name), value):
            vars(layer)[_FUNCTIONS][name][0].function = value  # a hook from before goes, and leaves what it wrapped
        else:
            cls.__setattr__(layer, name, value)

    def delete_attribute(layer: Layer, name: str) -> None:
        if name not in vars(layer) and find_user_function(layer, name) is not None:
            _drop_user_function(layer, name)
        else:
            cls.__delattr__(layer, name)
            restore_class(layer)

    for name in methods:
        setattr(PlainMethods, name, property(lambda _, name=name: getattr(cls, name)))  # type: ignore[misc]
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return PlainMethods(cls.__name__, (cls,), {
        **names, **methods, "_plain_class": cls, "__setattr__": set_attribute, "__delattr__": delete_attribute,
        "__reduce_ex__": _reduce, "extra_repr": _describe,
    })  # fmt: skip


def _run_overrides(cls: type, name: str) -> Callable[..., Any]:
    """Return the method of a class that runs a layer's overrides."""

    @paddle.jit.not_to_static
    def method(layer: Layer, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**FALLBACK)
        if not FALLBACK and list_overrides(layer):
            require_whole_graph(vars(layer).get(name))
        functions = vars(layer).get(_FUNCTIONS, {}).get(name) or [Original(layer, name)]
        return functions[-1](*args, **kwargs)

    marked: Any = method  # whose attributes the types of one Paddle know, and of another not
    marked.__name__, marked.__doc__ = name, getattr(cls, name).__doc__
    marked._runs_overrides = True
    marked.__signature__ = inspect.signature(getattr(cls, name))
    return marked


def _wraps(function: Any, inner: Any) -> bool:
    """Return whether a function was made around another by ``functools.wraps``."""
    while (function := getattr(function, "__wrapped__", None)) is not None:
        if function is inner:
            return True
    return False


def _drop_user_function(layer: Layer, method: str) -> None:
    """Drop the user's functions around and inside of the overrides of a method."""
    vars(layer).pop(method, None)
    if method in vars(layer)[_FUNCTIONS]:
        vars(layer)[_FUNCTIONS][method][0].function = None
    restore_class(layer)


def _describe(layer: Layer) -> str:
    """Return what ``print(model)`` shows of a layer, with its overrides."""
    return ", ".join(filter(None, [find_plain_class(layer).extra_repr(layer), *map(repr, list_overrides(layer))]))


def _reduce(layer: Layer, protocol: Any) -> tuple[Any, ...]:
    return _create, (find_plain_class(layer),), vars(layer)


def _create(cls: type) -> Any:
    """Create an empty layer; pickle requires a function of a module."""
    return object.__new__(_class_with_overrides(cls))


def restore_class(layer: Layer) -> None:
    """Restore a layer's class once no override is left, and no user's function around."""
    if not is_overridden(layer) or list_overrides(layer):
        return
    functions = vars(layer)[_FUNCTIONS]
    if functions.keys().isdisjoint(vars(layer)):  # else the user's function may call ours
        originals = {method: original.function for method, (original,) in functions.items()}
        vars(layer).update({method: function for method, function in originals.items() if function is not None})
        del vars(layer)[_FUNCTIONS]
        layer.__class__ = find_plain_class(layer)
