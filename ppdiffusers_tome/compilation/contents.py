"""The code, the state and the weights of a model, to find later changes.

A program holds what known code did once. So a model is compiled only if all of it is code of Paddle, ppdiffusers and
this package; all that such code may read is compared by value, at any depth.
"""

from collections.abc import Container, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import paddle
import xxhash
from paddle.nn import Layer

from ppdiffusers_tome.compilation.snapshot import Snapshot
from ppdiffusers_tome.compilation.weight_reader import WeightReader
from ppdiffusers_tome.patching.override import list_overrides
from ppdiffusers_tome.patching.slots import SLOTS

# The attribute of a compiled model that holds its programs.
COMPILED = "_ppdiffusers_tome_compiled"
_KNOWN = {"paddle", "ppdiffusers", "paddlenlp", "ppdiffusers_tome"}
# Modules that known classes inherit from, or whose decorators wrap known functions.
_HARMLESS = {
    "_abc", "abc", "builtins", "collections", "contextlib", "dataclasses", "decorator", "enum", "functools", "typing",
}  # fmt: skip
_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, type(...), np.generic, np.dtype)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_HOOKS = ("_forward_pre_hooks", "_forward_post_hooks")
# Attributes that Paddle gives every layer and that no ``forward`` reads.
_UNREAD = vars(Layer()).keys() - {"training", "_parameters", "_buffers", "_sub_layers", *_HOOKS}
# Keys of a config that tell where it is from, which changes no result.
_ORIGINS = ("_name_or_path", "_use_default_values")


class Contents:
    """A model's code, state and weights at one moment.

    Attributes:
        obstacle: why no call of the model becomes a program: a fault, or code in it that is not known; or None.
        tensors: parameters, buffers and other tensors, each once.
        reader: reads the numbers in the tensors, or nothing where there is an obstacle.
        addresses: the address of each tensor.
        description_hash: a hash of all but the numbers in tensors, equal where another process has equal contents.
        ip_adapters: the processors of IP-Adapters, whose ``scale`` is an input of a program.
        snapshot: a copy of all state but the numbers in tensors.
    """

    def __init__(self, model: Layer) -> None:
        self.obstacle: str | None = None
        self.tensors: list[paddle.Tensor] = []
        self.ip_adapters = list_ip_adapters(model)
        self._model, self._owner = model, model
        self._text: list[str] = []  # A description of all that was read, in pieces.
        self._numbers: dict[int, int] = {}  # The objects that were read, numbered in their order, by identity.
        self.snapshot = Snapshot()
        try:
            self._read(model)
        except RecursionError:
            self._refuse("values that are nested too deeply")
        self.obstacle = find_fault(model, self.tensors) or self.obstacle
        self.reader = WeightReader([] if self.obstacle else self.tensors)
        self.addresses, self._versions = self._locate()
        self.description_hash = xxhash.xxh3_128_hexdigest("\n".join(self._text).encode())

    def is_current(self) -> bool:
        """Return whether nothing has changed but maybe numbers in weights."""
        return self.snapshot.is_unchanged() and self._locate() == (self.addresses, self._versions)

    def _locate(self) -> tuple[list[int], list[int]]:
        """Return the address and the version of each tensor."""
        return [x.data_ptr() for x in self.tensors], [x.inplace_version for x in self.tensors]

    def _read(self, value: Any) -> None:
        """Describe a value in the text, and all that is in it."""
        if isinstance(value, _PLAIN):
            self._text.append(repr(value))
        elif id(value) in self._numbers:
            self._text.append(f"again {self._numbers[id(value)]}")
        else:
            self._numbers[id(value)] = len(self._numbers)
            self._text.append(f"{type(value).__module__}.{type(value).__qualname__}")
            owner = self._owner
            self._read_new(value)  # It may set another owner for what is in the value.
            self._owner = owner

    def _read_new(self, value: Any) -> None:
        if isinstance(value, paddle.Tensor):
            self.tensors.append(value)
            self._text.append(f"{value.shape} {value.dtype}")
        elif isinstance(value, paddle.pir.Value):  # A symbol in a twin that is traced.
            return
        elif isinstance(value, np.ndarray):
            self._text.append(f"{value.shape} {value.dtype} {value.tobytes().hex()}")
            self.snapshot.arrays.append((value, value.copy()))
        elif isinstance(value, Layer):
            self._read_layer(value)
        elif isinstance(value, type):
            self._require_known(value.__module__, value.__qualname__)
        elif isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, partial)):
            self._read_function(value)
        elif self._read_class(type(value)):  # An unknown class is refused, whatever is in its object.
            if isinstance(value, _CONTAINERS):
                self._read_items(value)
            else:
                self._read_attributes(value)

    def _read_layer(self, layer: Layer) -> None:
        self._owner = layer
        self._read_class(type(layer))
        slots, overrides = vars(layer).get(SLOTS, {}).values(), list_overrides(layer)
        self.snapshot.slots += [(slot, slot.inner, slot.overrides) for slot in slots]
        self._text += [f"{type(each).__name__} {each.state.config}" for each in overrides]
        replaced = {"forward", *(each.method_name for each in overrides)}
        skipped = {*_UNREAD, *replaced, SLOTS, COMPILED, *(["scale"] if layer in self.ip_adapters else [])}
        if layer is self._model:  # Functions and hooks on the model itself run around its programs.
            skipped.update(_HOOKS)
        else:
            for function in (*(vars(layer).get(name) for name in replaced), *(slot.inner for slot in slots)):
                if function is not None and not _find_module(function).startswith("ppdiffusers_tome."):
                    self._refuse(f"a function in place of a method ({getattr(function, '__qualname__', function)})")
            if any(vars(layer)[name] for name in _HOOKS):
                self._refuse("hooks")
        self._read_attributes(layer, skipped)

    def _read_function(self, function: Any) -> None:
        if isinstance(function, MethodType):
            self._read(function.__func__)
            self._read(function.__self__)
        elif isinstance(function, partial):
            self._read([function.func, function.args, function.keywords])
        elif self._require_known(_find_module(function), function.__qualname__):
            self._text.append(f"{function.__module__}.{function.__qualname__}")
            for cell in getattr(function, "__closure__", None) or ():
                self._read(cell.cell_contents)

    def _read_class(self, cls: type) -> bool:
        """Describe a class, and return whether it is known."""
        for base in cls.__mro__[:-1]:
            if id(base) in self._numbers or base in _CONTAINERS:
                continue
            if not self._require_known(base.__module__, base.__qualname__):
                return False
            self._numbers[id(base)] = len(self._numbers)
            self.snapshot.add(vars(base), self._owner)
            for name, value in list(vars(base).items()):
                function = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(function, FunctionType):
                    self._require_known(_find_module(function), f"{base.__name__}.{name}")
                    if not _find_module(function).startswith("ppdiffusers_tome."):
                        self._text.append(f"{name} {function.__module__}.{function.__qualname__}")
                elif not name.startswith("__") or type(value).__module__ != "builtins":
                    self._text.append(name)
                    self._read(value)
        return True

    def _read_items(self, value: Any) -> None:
        if not isinstance(value, (tuple, frozenset)):
            self.snapshot.add(value, self._owner)
        self._text.append(str(len(value)))
        for item in sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value:
            self._read(item)
            if isinstance(value, Mapping):
                self._read(None if item in _ORIGINS else value[item])
                if isinstance(value[item], paddle.Tensor):
                    self.snapshot.tensors.append((value, item, value[item]))

    def _read_attributes(self, value: Any, skipped: Container[str] = ()) -> None:
        attributes = getattr(value, "__dict__", None)
        if attributes is None:  # As for a type of Paddle's.
            self._text.append(str(value).partition(" at 0x")[0])
            return
        self._owner = value
        self.snapshot.add(attributes, value)
        for name, each in list(attributes.items()):
            if name not in skipped:
                self._text.append(name)
                self._read(each)

    def _require_known(self, module: str | None, name: str) -> bool:
        is_known = str(module).partition(".")[0] in _KNOWN | _HARMLESS
        if not is_known:
            self._refuse(f"{name} of {module}")
        return is_known

    def _refuse(self, what: str) -> None:
        if self.obstacle is None:
            self.obstacle = f"{type(self._owner).__name__} has {what}, code of which a program would know nothing"


def list_ip_adapters(model: Layer) -> list[Any]:
    """List the processors of IP-Adapters that have one scale."""
    adapters = (layer for layer in model.sublayers() if type(layer).__name__.startswith("IPAdapterAttn"))
    return [each for each in adapters if isinstance(vars(each).get("scale"), float)]


def find_fault(model: Layer, tensors: Sequence[paddle.Tensor]) -> str | None:
    """Return what a user can mend of a model, or None."""
    if others := {str(x.dtype) for x in tensors if x.is_floating_point()} - {str(paddle.float32)}:
        return f"its weights are in {others.pop()}; load it in float32, and give precision='bfloat16' for speed"
    if not all(x.place.is_cpu_place() for x in tensors):
        return "its weights are on a GPU; load it under paddle.set_device('cpu')"
    if not all(x.is_contiguous() for x in tensors):
        return "one of its weights is a view of another tensor; make it contiguous()"
    if model.training:  # The model alone is asked, as layers of a LoRA that come later are in training mode.
        return "it is in training mode; call its eval()"
    return None


def _find_module(function: Any) -> str:
    """Return the module in which a function was written, or ""."""
    if isinstance(function, BuiltinFunctionType):
        return function.__module__ or "builtins"
    # ``__module__`` may be that of a replaced function. A partial has no globals, and code of ``exec`` no name there.
    return getattr(function, "__globals__", {}).get("__name__", "")
