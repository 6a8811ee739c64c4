"""A model as its programs were made of it: layers, their attributes and weights."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.nn import Layer

from ppdiffusers_tome.merging.arrays import share_memory
from ppdiffusers_tome.patching.checks import NO_PROGRAM
from ppdiffusers_tome.patching.override import SLOTS, find_inner_forward, list_overrides
from ppdiffusers_tome.settings.config import ToMeConfig

_SAMPLES = 64  # numbers that are read of each weight


class Snapshot(NamedTuple):
    """The state of a model at one moment, to find later changes."""

    layers: list[Layer]  # the model and all inside of it
    attributes: list[Any]  # of the layers and their attention processors, and weights by identity
    settings: list[tuple[int, ToMeConfig]]  # of ToMe, by the layer's identity


class Contents:
    """The layers, attributes and weights of a model of which programs were made.

    Of each weight some numbers are read: whatever changes a weight (a LoRA that is fused, training, another state)
    changes all of it, or its address, or counts its version up (``weight[3] = 0``).

    Attributes:
        weights: parameters and buffers.
        samples: numbers of each weight.
        addresses: the address and version of each weight.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        layers, self._snapshot = snapshot.layers, snapshot
        tensors = (x for each in layers for held in (each._parameters, each._buffers) for x in held.values())
        self.weights = list({id(x): x for x in tensors if x is not None}.values())
        self.num_bytes = sum(x.size * x.element_size() for x in self.weights)
        self._obstacle = _find_fault(layers, self.weights)
        self._views = [] if self._obstacle else [_sample(x) for x in self.weights]  # of others numpy may have no view
        self.addresses, self.samples = self._read_weights()

    def find_obstacle(self, settings: Iterable[tuple[int, ToMeConfig]]) -> str | None:
        """Return why no call with these settings becomes a program, or None."""
        if any(config.differs_by_step for _, config in settings):
            return f"{NO_PROGRAM}; apply_tome with one ratio and without them"
        return self._obstacle

    def is_outdated(self, snapshot: Snapshot) -> bool:
        """Return whether a layer, an attribute or a weight changed since."""
        try:
            # The same objects, or equal ones. Settings are no contents: each has programs of its own.
            return snapshot[:2] != self._snapshot[:2] or self._read_weights() != (self.addresses, self.samples)
        except Exception:  # of attributes that cannot be compared, such as arrays
            return True

    def _read_weights(self) -> tuple[list[tuple[int, int]], bytes]:
        addresses = [(x.data_ptr(), x.inplace_version) for x in self.weights]
        return addresses, b"".join(view.tobytes() for view in self._views)


def _find_fault(layers: list[Layer], weights: list[paddle.Tensor]) -> str | None:
    if others := {str(x.dtype) for x in weights if x.is_floating_point()} - {str(paddle.float32)}:
        return f"its weights are in {others.pop()}; load it in float32, and give precision='bfloat16' for speed"
    if not all(x.place.is_cpu_place() for x in weights):
        return "its weights are on a GPU; load it under paddle.set_device('cpu')"
    if not all(x.is_contiguous() for x in weights):
        return "one of its weights is a view of another tensor; make it contiguous()"
    if any(each._forward_pre_hooks or each._forward_post_hooks for each in layers if each is not layers[0]):
        return "hooks are on layers inside of it, which a program would not call; remove them"
    if layers[0].training:  # layers of a LoRA are where they come later
        return "it is in training mode; call its eval()"
    return None


def _sample(x: paddle.Tensor) -> np.ndarray:
    """Return an array of some numbers on the memory of a weight."""
    numbers = share_memory(x)[0].reshape(-1)
    return numbers[:: max(1, numbers.size // _SAMPLES)][:_SAMPLES]


def take_snapshot(model: Layer) -> Snapshot:
    """Take a model's layers, their attributes, and the settings of ToMe.

    ToMe leaves no trace in the attributes, so a model to which it is applied again finds its programs; nor do hooks on
    the model itself, which run around them. Of lists and dictionaries, which may change in place, the items are listed,
    too: hooks, scales of LoRAs. So are the attributes of attention processors, such as an IP-Adapter's scale.
    """
    found = Snapshot(model.sublayers(include_self=True), [], [])
    for layer in found.layers:
        overrides = list_overrides(layer)
        found.settings.extend((id(layer), each.state.config) for each in overrides)
        # Those of ToMe, and one that Paddle sets where hooks run.
        skipped = {"forward", "_built", SLOTS, *(each.method_name for each in overrides)}
        values = [
            value for name, value in vars(layer).items()
            if name not in skipped and not (layer is model and name.startswith("_forward_"))
        ]  # fmt: skip
        values.extend(getattr(vars(layer).get("processor"), "__dict__", {}).values())
        for value in values:
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            found.attributes.extend((value, *items))
        # A cache of steps may replace the method of a class, or put a function in its place.
        found.attributes.extend((type(layer).forward, find_inner_forward(layer)))
        # By identity, as two scalars may be equal.
        found.attributes.extend(id(x) for held in (layer._parameters, layer._buffers) for x in held.values())
    return found
