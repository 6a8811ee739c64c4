"""What stands in for a method of an attention layer, where no hook of Paddle reaches."""

from __future__ import annotations

from typing import Any, ClassVar

from paddle.nn import Layer

from ppdiffusers_tome.patching.hooks.base import Hooks
from ppdiffusers_tome.patching.state.attachment import Attachment


class StandIn(Hooks):
    """Called in place of the method ``NAME`` of one attention layer.

    Args:
        attachment: of the denoiser.
        attention: the layer.
    """

    NAME: ClassVar[str]

    def __init__(self, attachment: Attachment, attention: Layer) -> None:
        super().__init__(attachment)
        self.attention = attention
        # A user may have put one of their own on the layer: it is called, and put back by ``remove``.
        self.own = vars(attention).get(self.NAME)

    def put(self) -> None:
        setattr(self.attention, self.NAME, self)

    def remove(self) -> None:
        if self.own is None:
            delattr(self.attention, self.NAME)
        else:
            setattr(self.attention, self.NAME, self.own)

    def stood_in_for(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer had by this name."""
        if self.own is not None:
            return self.own(*args, **kwargs)
        return getattr(type(self.attention), self.NAME)(self.attention, *args, **kwargs)
