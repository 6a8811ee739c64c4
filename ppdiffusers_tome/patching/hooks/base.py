"""What all hooks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.state.calls import Call
from ppdiffusers_tome.patching.state.recompute import note, noted

if TYPE_CHECKING:
    from paddle.nn import Layer


class Hooks:
    """The hooks on one layer, block or host; ``attachment`` is shared by all of one denoiser."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def _call_around(self, layer: Layer) -> Call | None:
        """The call that a layer belongs to which is about to run, maybe once more; None where it is called alone."""
        self.attachment.drop_failed(self, layer)
        call = self.attachment.call()
        if call is not None:
            if call.in_a_graph:
                note(self.attachment, call)
            return call
        call = noted(self.attachment)
        if call is not None:
            self.attachment.begin(self, layer, call)
        return call


def unseen(attachment: Attachment, layer: Layer) -> None:
    """Paddle 2.6 shows hooks no keywords, and ppdiffusers calls these layers by position."""
    name = type(layer).__name__
    attachment.warn_once("keywords", f"{name} was called by keyword, which ToMe does not see, so it runs unmerged")
