"""Overrides, which run in place of a layer's method."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.patching.slots import SLOTS, close_slots, find_slot, open_slot
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# What an override runs in place of: the method, or the override inside.
Original = Callable[..., Any]


@dataclass(eq=False, repr=False)
class Override:
    """The function in place of a layer's method in its denoiser's calls.

    A subclass defines ``run``, which gets the running call, the original and the arguments; that of a denoiser begins
    the call in ``__call__``. Where no call runs, the original does. Overrides are copied with their layer.
    """

    method_name: ClassVar[str] = "forward"
    runs_in: ClassVar[str] = "call"  # the field of ``StackEntry`` that ``run`` gets; the original runs where it is None
    follows_wrappers: ClassVar[bool] = False  # True: moves to a layer that wraps its own, as a LoRA wraps ``to_k``

    state: DenoiserState
    layer: Layer

    def __call__(self, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        for entry in reversed(CALL_STACK.entries):
            if entry.call.state is self.state:
                if paddle.in_dynamic_mode() != entry.call.is_eager:
                    raise ToMeValueError(
                        f"paddle.jit.to_static traces a layer inside of {type(entry.call.denoiser).__name__}, and its "
                        "tokens are matched outside of that program; trace the whole model, or remove_tome"
                    )
                call = getattr(entry, self.runs_in)
                return original(*args, **kwargs) if call is None else self.run(call, original, *args, **kwargs)
        self.note_outside()
        return original(*args, **kwargs)

    def run(self, call: Any, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the method."""
        raise NotImplementedError

    def note_outside(self) -> None:
        """Note that the layer runs outside of a call of its denoiser."""

    def put(self) -> None:
        """Put this on its layer, around what is there."""
        open_slot(self.layer, self.method_name).overrides += (self,)

    def take_off(self) -> None:
        """Take this off its layer; the last one restores the layer's method."""
        if (slot := find_slot(self.layer, self.method_name)) is not None:
            slot.overrides = tuple(each for each in slot.overrides if each is not self)
        close_slots(self.layer)

    def follow(self, layer: Layer) -> None:
        """Move this to the layer that replaced its own, under ``CHANGE_LOCK``."""
        wraps = any(inner is self.layer for inner in layer.sublayers())
        # Where the new layer wraps this one's and calls it, an override of a whole attention stays.
        if self.layer is not layer and hasattr(layer, self.method_name) and (not wraps or self.follows_wrappers):
            self.take_off()
            self.layer = layer
            self.put()


def list_overrides(layer: Layer) -> list[Override]:
    """List the overrides of all methods of a layer, outermost first."""
    return [override for slot in vars(layer).get(SLOTS, {}).values() for override in reversed(slot.overrides)]


def walk_overrides(model: Layer) -> Iterator[Override]:
    """Yield the overrides of all layers of a model or part."""
    for layer in model.sublayers(include_self=True):
        yield from list_overrides(layer)
