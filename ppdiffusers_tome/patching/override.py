"""The base of all overrides, which run in place of a layer's method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from paddle.nn import Layer

from ppdiffusers_tome.patching.layer_class import add_override, remove_override

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState

# What an override runs in place of: the method, or the override inside.
Original = Callable[..., Any]


class Override:
    """The function in place of a layer's method in its denoiser's calls.

    A subclass defines ``run``, which gets the running call, the original and the arguments. Where no call runs, the
    original does. Overrides are copied and pickled with their layer.

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

    def __call__(self, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        call = getattr(self.state.find_frame(), self.runs_in, None)
        return original(*args, **kwargs) if call is None else self.run(call, original, *args, **kwargs)

    def run(self, call: Any, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the method."""
        raise NotImplementedError

    def put(self) -> None:
        """Store this on its layer, around what is there."""
        add_override(self.layer, self)

    def take_off(self) -> None:
        """Remove this from its layer, which the last one restores."""
        remove_override(self.layer, self)

    def follow(self, layer: Layer) -> None:
        """Move this to the layer that replaced its own in the model, under ``CHANGES``."""
        wraps = any(inner is self.layer for inner in layer.sublayers())
        # Where the new layer wraps this one's and calls it, an override of a whole attention stays.
        if self.layer is not layer and (not wraps or self.follows_wrappers):
            add_override(layer, self)
            remove_override(self.layer, self)
            self.layer = layer
