"""Overrides that begin and end a denoiser's call and find its timestep."""

from dataclasses import dataclass
from typing import Any

import paddle

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.patching.arguments import Keywords, find_first_argument, list_parameters, name_arguments
from ppdiffusers_tome.patching.blocks import MergeableBlock
from ppdiffusers_tome.patching.call_stack import CALL_STACK, CHANGE_LOCK, StackEntry
from ppdiffusers_tome.patching.override import Original, Override
from ppdiffusers_tome.patching.recompute import HAS_STATE, is_recomputing
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall, list_step_settings
from ppdiffusers_tome.patching.state.shared_values import CallIdentity, list_tensors

# Names of the argument for the timestep. UniDiffuser goes by that of its image.
TIMESTEPS = ("timestep", "timesteps", "t", "r", "timestep_img", "timestep_text")
# Parts of the names of arguments for the output of a ControlNet or VCtrl, which differs in every step.
_CONTROLS = ("residual", "controlnet_hidden_states", "controlnet_block_samples", "controlnet_single_block_samples")


def find_timestep(arguments: Keywords) -> Any:
    """Return the timestep among a call's arguments as it was given, or None."""
    return next((arguments[name] for name in TIMESTEPS if name in arguments), None)


@dataclass(eq=False, repr=False)
class DenoiserOverride(Override):
    """The override of a denoiser with blocks in which tokens may merge."""

    blocks: list[MergeableBlock]
    reads_timestep: bool  # among the arguments, as no layer embeds it before the first block

    def __post_init__(self) -> None:
        self.parameters = tuple(list_parameters(self.layer))  # now, as a cache may replace the method later

    def __call__(self, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        call = self._begin(name_arguments(self.parameters, args, kwargs))
        try:
            with CHANGE_LOCK:
                self.state.running.add(call)
            output = CALL_STACK.run(StackEntry(call), original, *args, **kwargs)
        finally:
            self.state.running.discard(call)
        call.end()
        # A cache over steps skips all blocks in some steps, never in the first one.
        if self.state.awaits_blocks and not self.state.is_removed:
            self.state.warn_once(
                f"{type(self.layer).__name__} ran none of the blocks in which tokens merge, or not the layer whose "
                "input tells their grid, so ToMe has no effect: other layers run in their place; call apply_tome again"
            )
        return output

    def take_off(self) -> None:
        """Remove this; a backward pass cannot run its layers again."""
        self.state.is_removed = True
        super().take_off()

    def _begin(self, arguments: Keywords) -> DenoiserCall:
        """Create the call, and set its timestep if the arguments have it."""
        # With gradient checkpointing a first run records none.
        records_gradients = paddle.in_dynamic_mode() and paddle.is_grad_enabled()
        self._require_known_calls(records_gradients)
        call = DenoiserCall(self.state, self.layer, given_timestep=find_timestep(arguments))
        if (pipeline_call := CALL_STACK.pipeline_call) is not None:
            call.denoising = pipeline_call.find_denoising(self.state, self.layer)
        if self.state.config.shares_steps and not records_gradients:  # in training, timesteps and images are random
            call.identity = self._identify(arguments)
        if self.reads_timestep:
            call.read_timestep()
        return call

    def _require_known_calls(self, records_gradients: bool) -> None:
        """Refuse a second run of layers whose call or step is unknown."""
        if records_gradients and not HAS_STATE and getattr(self.layer, "is_gradient_checkpointing", False):
            raise ToMeValueError(
                f"gradient checkpointing does not go together with ToMe on Paddle {paddle.__version__}: the call of "
                "a layer that runs again cannot be told before Paddle 3, nor where other code (or another copy of this "
                "package) set Paddle's custom_state_manager; disable_gradient_checkpointing, install paddlepaddle 3, "
                "or import ppdiffusers_tome first"
            )
        if is_recomputing() and (settings := list_step_settings(self.state.config, is_eager=True)):
            raise ToMeValueError(
                f"{settings[0]} needs the step of each call, which is unknown where a backward pass runs the whole "
                "denoiser again; checkpoint its blocks (enable_gradient_checkpointing), or apply_tome with one ratio "
                "and without it"
            )

    def _identify(self, arguments: Keywords) -> CallIdentity:
        """Identify a call by its latents' shape and its conditioning."""
        latents = arguments.get(self.parameters[0])
        shape = tuple(latents.shape) if isinstance(latents, paddle.Tensor) else ()
        lasting = [
            value for name, value in arguments.items()
            if name not in (self.parameters[0], *TIMESTEPS) and not any(word in name for word in _CONTROLS)
        ]  # fmt: skip
        # What conditions the image (texts, class labels and the like) has no height and width.
        return CallIdentity(shape, [x for x in list_tensors(lasting) if x.ndim <= 3])


class TimestepOverride(Override):
    """The override of the layer that embeds the timestep.

    It runs inside a traced program, unlike the denoiser, and some models change the timestep before it.
    """

    def run(self, call: DenoiserCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        timestep = find_first_argument(self.layer, args, kwargs)
        if timestep is not None:
            call.set_timestep(timestep)
        return original(*args, **kwargs)
