"""The base of all overrides, which run in place of a layer's method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from paddle.nn import Layer

from ppdiffusers_tome.patching.layer_class import add_override, list_functions, remove_override

if TYPE_CHECKING:
    from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState


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
        functions = list_functions(self.layer, self.method)
        if self not in functions:  # another thread took this off after it was found
            return getattr(self.layer, self.method)(*args, **kwargs)
        return functions[functions.index(self) - 1](*args, **kwargs)

    def put(self) -> None:
        """Store this on its layer, around what is there."""
        add_override(self)

    def take_off(self) -> None:
        """Remove this from its layer, which the last one restores."""
        remove_override(self)

    def follow(self, layer: Layer) -> None:
        """Move this to the layer that replaced its own in the model."""
        wraps = any(inner is self.layer for inner in layer.sublayers())
        # Where the new layer wraps this one's and calls it, an override of a whole attention stays.
        if not wraps or self.follows_wrappers:
            self.take_off()
            self.layer = layer
            self.put()
