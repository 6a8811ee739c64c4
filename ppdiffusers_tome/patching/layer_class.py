"""Layers with ToMe: their methods run overrides.

A layer with ToMe gets a class made from its own, as in tomesd, with the same name and module. ``forward`` of that
class runs what ``put`` stored in the layer's ``__dict__``, and otherwise the original. So hooks of the user run outside
and see all tokens, keywords arrive on every Paddle, ``try``/``finally`` ends a call even after KeyboardInterrupt, and a
deep copy or pickle of a model carries its ToMe. A function of the user in place of ``forward`` runs inside if it was
there before, and around if it came later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import paddle
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.patching.paddle_compat import EVERY_FRAME, convert_while_tracing, require_whole_graph

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.calls import DenoiserCall
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# The methods that overrides replace.
_REPLACEABLE = ("forward", "prepare_attention_mask", "get_attention_scores")
# The attribute of a layer that holds, by method, the outermost override; or, if they are gone, what they replaced.
_OVERRIDES = "_ppdiffusers_tome"


class Override:
    """What runs in place of a layer's method in calls of its denoiser.

    A subclass defines ``run``, which gets the running call and the arguments and calls ``call_original``. Outside of a
    call of the denoiser the original runs. Overrides are copied and pickled with their layer.

    Attributes:
        method: the name of the method.
        state: of the denoiser.
        layer: the layer.
        block: the override of the block that this belongs to; None where it serves several blocks.
        previous: what this runs around: another override, a function of the user, or None for the class's method.
    """

    method: ClassVar[str] = "forward"
    # True if this moves to a layer that wraps its own, as a LoRA wraps ``to_k``.
    follows_wrappers: ClassVar[bool] = False

    def __init__(self, state: DenoiserState, layer: Layer) -> None:
        self.state, self.layer = state, layer
        self.block: Any = None
        self.previous: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {type(self.layer).__name__}.{self.method}, {self.state.config.summary}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.state.current_call()
        return self.call_original(*args, **kwargs) if call is None else self.run(call, *args, **kwargs)

    def run(self, call: DenoiserCall, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the method."""
        raise NotImplementedError

    def call_original(self, *args: Any, **kwargs: Any) -> Any:
        """Call what this runs around."""
        return _find_callable(self.layer, self.method, self.previous)(*args, **kwargs)

    def put(self) -> None:
        """Store this on its layer, around what is there."""
        layer, method = self.layer, self.method
        if not is_overridden(layer):
            layer.__class__ = _class_with_overrides(find_class(layer))
            vars(layer).setdefault(_OVERRIDES, {})
        functions = vars(layer)[_OVERRIDES]
        self.previous = functions[method] if method in functions else _take_function(layer, method)
        functions[method] = self

    def take_off(self) -> None:
        """Remove this from its layer, which is as before once no override is left."""
        holder, key = vars(self.layer).get(_OVERRIDES, {}), self.method
        while isinstance(holder.get(key), Override):
            if holder[key] is self:
                holder[key] = self.previous
                _restore(self.layer)
                return
            holder, key = vars(holder[key]), "previous"

    def follow(self, layer: Layer) -> None:
        """Move this to the layer that replaced its own in the model."""
        wraps = any(inner is self.layer for inner in layer.sublayers())
        # Where the new layer wraps this one's and calls it, an override of a whole attention stays.
        if not wraps or self.follows_wrappers:
            self.take_off()
            self.layer = layer
            self.put()


def is_overridden(layer: Layer) -> bool:
    """Return whether the class of a layer runs overrides; somebody may have given it another one since."""
    return _OVERRIDES in vars(layer) and "_plain_class" in vars(type(layer))


def list_overrides(layer: Layer) -> list[Override]:
    """List the overrides of all methods of a layer, outermost first."""
    return [override for top in vars(layer).get(_OVERRIDES, {}).values() for override in _walk(top)]


def walk_overrides(model: Layer) -> Iterator[Override]:
    """Yield the overrides of all layers of a model or a part of one."""
    for layer in model.sublayers(include_self=True):
        yield from list_overrides(layer)


def list_functions(layer: Layer) -> list[Any]:
    """List the functions of others in place of a layer's ``forward``, around and inside of overrides."""
    return [each for each in (vars(layer).get("forward"), find_inside(layer)) if each is not None]


def find_inside(layer: Layer) -> Any:
    """Return the function of a user that the overrides of a layer's ``forward`` run around, or None."""
    function: Any = vars(layer).get(_OVERRIDES, {}).get("forward")
    while isinstance(function, Override):
        function = function.previous
    return function


def find_class(layer: Layer) -> type:
    """Return the class of a layer without ToMe."""
    return vars(type(layer)).get("_plain_class", type(layer))


def reset_step_caches(layer: Layer) -> None:
    """Drop the results in the caches over steps of a layer.

    They are hooks of ppdiffusers, such as Pyramid Attention Broadcast, which return earlier results in some steps.
    """
    for hook in list(getattr(vars(layer).get("_diffusers_hook"), "hooks", {}).values()):
        if getattr(getattr(hook, "state", None), "cache", None) is not None:
            hook.reset_state(layer)


def _walk(function: Any) -> Iterator[Override]:
    while isinstance(function, Override):
        yield function
        function = function.previous


def _find_callable(layer: Layer, method: str, function: Any) -> Callable[..., Any]:
    """Return an override, a function of the user, or for None the method of the layer's class, to be called."""
    if isinstance(function, Override):
        return function
    if function is None:
        function = getattr(find_class(layer), method).__get__(layer)
    return function if paddle.in_dynamic_mode() else convert_while_tracing(function)


# One for each class, as ``to_static`` and pickle compare classes and functions.
@cache
def _class_with_overrides(cls: Any) -> type:
    """Return the subclass whose methods run overrides."""
    methods = {name: _run_overrides(cls, name) for name in _REPLACEABLE if hasattr(cls, name)}
    replaced: dict[str, Any] = {}

    class PlainMethods(type(cls)):  # type: ignore[misc]
        """What is read from the new class, or put on it, is that of the class it was made from.

        As ``type(model).forward``, which caches over steps read and replace. A layer finds the new methods.
        """

        def __setattr__(self, name: str, value: Any) -> None:
            if name in methods and value is methods[name]:
                value = replaced.pop(name)  # somebody found ours in the ``__dict__`` and puts it back
            else:
                replaced.setdefault(name, getattr(cls, name, None))
            setattr(cls, name, value)

        def __delattr__(self, name: str) -> None:
            delattr(cls, name)

    for name in methods:
        setattr(PlainMethods, name, property(lambda _, name=name: getattr(cls, name)))  # type: ignore[misc]
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return PlainMethods(cls.__name__, (cls,), {
        **names, **methods, "_plain_class": cls, "__reduce_ex__": _reduce, "extra_repr": _describe,
    })  # fmt: skip


def _run_overrides(cls: type, name: str) -> Callable[..., Any]:
    """Return the method that runs the overrides of a layer of a class."""

    @paddle.jit.not_to_static
    def method(layer: Layer, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**EVERY_FRAME)
        overrides = vars(layer).get(_OVERRIDES, {})
        if overrides and not EVERY_FRAME:
            require_whole_graph(vars(layer).get(name))
        return _find_callable(layer, name, overrides.get(name))(*args, **kwargs)

    marked: Any = method  # whose attributes the types of one Paddle know, and of another not
    marked.__name__, marked.__doc__ = name, getattr(cls, name).__doc__
    marked._runs_overrides = True
    marked.__signature__ = inspect.signature(getattr(cls, name))
    return marked


def _describe(layer: Layer) -> str:
    """Return what ``print(model)`` shows of a layer: what it does without overrides, and these."""
    plain: Any = find_class(layer)
    return ", ".join(filter(None, [plain.extra_repr(layer), *map(repr, list_overrides(layer))]))


def _reduce(layer: Layer, protocol: Any) -> tuple[Any, ...]:
    return _create, (find_class(layer),), vars(layer)


def _create(cls: type) -> Any:
    """Create an empty layer with overrides; pickle requires a function of a module."""
    return object.__new__(_class_with_overrides(cls))


def _find_place(layer: Layer, method: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary and key that hold a function in place of a method.

    That is the layer's own, or that of the hooks of ppdiffusers on it, such as a cache over steps: overrides run inside
    of them, as their results have all tokens.
    """
    references = list(getattr(vars(layer).get("_diffusers_hook"), "_fn_refs", ()))
    if method != "forward" or not references:
        return vars(layer), method
    reference = vars(references[0])
    return reference, "original_forward" if reference.get("original_forward") is not None else "forward"


def _is_ours(function: Any) -> bool:
    return getattr(getattr(function, "__func__", None), "_runs_overrides", False)


def _take_function(layer: Layer, method: str) -> Any:
    """Take a function that somebody put in place of a method; None where there is none."""
    holder, key = _find_place(layer, method)
    if holder is vars(layer):
        return holder.pop(key, None)
    function, holder[key] = holder[key], vars(type(layer))[method].__get__(layer)
    return None if getattr(function, "__func__", None) is getattr(find_class(layer), method) else function


def _restore(layer: Layer) -> None:
    """Put a layer back to its class once no override is left, nor a function of the user that calls ours."""
    functions, plain = vars(layer)[_OVERRIDES], find_class(layer)
    if list_overrides(layer):
        return
    places = {method: _find_place(layer, method) for method in functions}
    for method, (holder, key) in places.items():
        if _is_ours(vars(layer).get(method)):
            del vars(layer)[method]  # Paddle leaves there what it traced
        if holder is vars(layer) and key in holder:
            return  # a function of the user around ours may call it, which then calls what was inside
    for method, (holder, key) in places.items():
        function = functions[method]
        if holder is vars(layer) and function is not None:
            holder[key] = function
        elif holder is not vars(layer) and _is_ours(holder[key]):
            holder[key] = function or getattr(plain, method).__get__(layer)
    del vars(layer)[_OVERRIDES]
    layer.__class__ = plain
