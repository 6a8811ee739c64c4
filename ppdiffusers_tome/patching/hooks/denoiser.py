"""Hooks on a denoiser: its calls begin and end, and tell their timestep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.patching.hooks.base import Hooks
from ppdiffusers_tome.patching.paddle_compat import RunningCall, keywords_of
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.state.calls import Call
from ppdiffusers_tome.patching.state.recompute import note, noted

# What denoisers call the argument that is their timestep.
_TIMESTEPS = ("timestep", "timesteps", "t", "r")
# UniDiffuser has one of its picture and one of its text.
_OF_TWO = ("timestep_img", "timestep_text")
# What is in the names of arguments that bring a ControlNet's or VCtrl's output, of UNets, SD3, CogVideoX and FLUX.
_OF_A_STEP = ("residual", "controlnet_hidden_states", "controlnet_block_samples", "controlnet_single_block_samples")


class DenoiserHooks(Hooks):
    """On the denoiser itself, or the part of a model that ToMe is applied to: a call begins and ends.

    Args:
        attachment: of the denoiser.
        parameters: of its ``forward``, by position.
        reads_timestep: whether its own arguments tell the timestep, as it has no layer that embeds it.
    """

    def __init__(self, attachment: Attachment, parameters: Sequence[str], *, reads_timestep: bool) -> None:
        super().__init__(attachment)
        self.parameters, self.reads_timestep = parameters, reads_timestep

    def begin(self, model: Layer, inputs: tuple, keywords: Mapping[str, Any] | None = None) -> None:
        again = noted(self.attachment, next_one=True)
        if again is not None:
            self.attachment.begin(self, model, again)
            return
        given = {**dict(zip(self.parameters, inputs, strict=False)), **keywords_of(keywords)}
        latents = given.pop(self.parameters[0], None)
        timesteps = [given.pop(name) for name in _TIMESTEPS if name in given]
        of_two = [given.pop(name) for name in _OF_TWO if name in given]
        call = Call(
            self.attachment,
            latents=tuple(latents.shape) if isinstance(latents, paddle.Tensor) else (),
            conditioning=list(_conditioning(_lasting(given))) if self.attachment.config.reuse_steps > 1 else (),
            training=model.training,
        )
        self.attachment.begin(self, model, call)
        note(self.attachment, call)
        timestep = timesteps[0] if self.reads_timestep and timesteps else None
        if of_two:
            timestep = self._denoised(of_two)
        if timestep is not None:
            if isinstance(timestep, (int, float)):
                timestep = paddle.to_tensor([timestep])
            if isinstance(timestep, paddle.Tensor) and timestep.ndim <= 1:
                call.set_timestep(timestep)

    def end(self, model: Layer, inputs: tuple, output: Any) -> None:
        self.attachment.end(self, failed=output is None)

    def _denoised(self, timesteps: Sequence[Any]) -> Any:
        """The timestep of what is denoised.

        For what stays as it is pipelines give a plain number, 0 where it is finished and the highest where it is noise.
        Of two tensors it is the picture's: to tell them apart would wait for the device.
        """
        ends = (0, self.attachment.max_timestep)
        running = [each for each in timesteps if isinstance(each, paddle.Tensor) or each not in ends]
        return (running or sorted(timesteps))[0]


class TimestepHooks(Hooks):
    """On the layer that embeds the timestep, called with it."""

    def __init__(self, attachment: Attachment, model: Layer) -> None:
        super().__init__(attachment)
        self.model = model

    def tell(self, layer: Layer, inputs: tuple) -> None:
        # While a program is recorded, and where a user calls it so, a model's ``forward`` runs without its hooks: its
        # call then begins here, and nobody says that it ends.
        self.attachment.end(self)
        call = self.attachment.call()
        if call is None and RunningCall(self.model).runs:
            call = Call(self.attachment, training=self.model.training)
            self.attachment.begin(self, self.model, call)
        if call is not None and inputs:
            call.set_timestep(inputs[0])


def _lasting(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments but for what a ControlNet adds, which is another in every step."""
    return {name: value for name, value in given.items() if not any(word in name for word in _OF_A_STEP)}


def _conditioning(given: Any) -> Iterator[paddle.Tensor]:
    """The tensors of a call's arguments that say what is drawn: the text, class labels and the like.

    Not those with height and width, which are large, such as a ControlNet's picture.
    """
    if isinstance(given, paddle.Tensor) and given.ndim <= 3:
        yield given
    elif isinstance(given, Mapping):
        for value in given.values():
            yield from _conditioning(value)
    elif isinstance(given, (list, tuple)):
        for value in given:
            yield from _conditioning(value)
