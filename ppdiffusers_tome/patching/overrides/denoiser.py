"""Overrides that begin and end a denoiser's call and find its timestep."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import paddle
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.patching.blocks import MergeableBlock
from ppdiffusers_tome.patching.overrides.block import BlockForward
from ppdiffusers_tome.patching.overrides.method import ForwardOverride, list_overrides
from ppdiffusers_tome.patching.paddle_compat import EVERY_FRAME, is_static_function
from ppdiffusers_tome.patching.state.attachment import Attachment
from ppdiffusers_tome.patching.state.call_stack import CALL_STACK
from ppdiffusers_tome.patching.state.calls import DenoiserCall
from ppdiffusers_tome.patching.state.recompute import find_stored_call, is_second_run, store_call

# Names of the argument for the timestep. UniDiffuser has one for its image and one for its text.
_TIMESTEPS, _TIMESTEP_PAIR = ("timestep", "timesteps", "t", "r"), ("timestep_img", "timestep_text")
# Parts of the names of arguments for the output of a ControlNet or VCtrl, which differs in every step.
_CONTROLS = ("residual", "controlnet_hidden_states", "controlnet_block_samples", "controlnet_single_block_samples")
# The caches over steps of PaddleMIX' examples keep tensors here, in ``joint_attention_kwargs``.
_FOREIGN_CACHE = "cache_dic"
_HOOK = "ppdiffusers_tome"  # the key of the hook that ``to_static`` makes necessary


class DenoiserForward(ForwardOverride):
    """The override of a denoiser or a part of a model.

    ``blocks`` are those that ToMe was attached to. ``reads_timestep`` is True where no layer embeds the timestep, so it
    is read from the arguments.
    """

    def __init__(
        self, attachment: Attachment, layer: Layer, blocks: list[MergeableBlock], *, reads_timestep: bool
    ) -> None:
        super().__init__(attachment, layer)
        self.blocks = blocks
        self.parameters = tuple(inspect.signature(type(layer).forward).parameters)[1:]
        self.reads_timestep = reads_timestep

    @property
    def __func__(self) -> Any:
        function = super().__func__
        # ``to_static`` is about to replace this. Not in ``put``: Paddle raises if a hook comes while the hooks of the
        # denoiser run, in any thread.
        hooks: dict[Any, Any] = self.layer._forward_pre_hooks
        hooks[_HOOK] = _ReturnHook(self)
        return function

    def take_off(self) -> None:
        super().take_off()
        hooks: dict[Any, Any] = self.layer._forward_pre_hooks
        if getattr(hooks.get(_HOOK), "override", None) is self:
            del hooks[_HOOK]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        psdb.fallback(**EVERY_FRAME)
        call = find_stored_call(self.attachment, next_one=True)
        # A backward pass that runs the denoiser again without a stored call: this was not there at the first run.
        if call is None and (self.removed_at is not None or is_second_run()):
            return self.call_original(*args, **kwargs)
        call = call or self._begin(args, kwargs)
        with self.attachment.make_current(call):
            store_call(self.attachment, call)
            output = self.call_original(*args, **kwargs)
            call.end()
        # A cache over steps skips them all in some steps, never in the first one.
        self.attachment.has_run_blocks |= call.num_blocks > 0
        # A call around this one is that of a later ToMe, and a user's function in ``forward`` holds this.
        if not self.attachment.has_run_blocks and not CALL_STACK.calls and self._has_blocks():
            self.attachment.warn_once(
                "no block",
                f"{type(self.layer).__name__} ran none of the blocks in which tokens merge, so ToMe has no effect: "
                "other layers run in their place",
            )
        return output

    def _has_blocks(self) -> bool:
        """Return whether ToMe is still applied to blocks of the denoiser."""
        layers = self.layer.sublayers(include_self=True)
        return any(isinstance(override, BlockForward) for layer in layers for override in list_overrides(layer))

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> DenoiserCall:
        """Create the call, and set its timestep if the arguments have it."""
        arguments = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
        latents = arguments.pop(self.parameters[0], None) if self.parameters else None
        timesteps = [arguments.pop(name) for name in _TIMESTEPS if name in arguments]
        pair = [arguments.pop(name) for name in _TIMESTEP_PAIR if name in arguments]
        lasting = {name: value for name, value in arguments.items() if not any(word in name for word in _CONTROLS)}
        call = DenoiserCall(
            self.attachment,
            latent_shape=tuple(latents.shape) if isinstance(latents, paddle.Tensor) else (),
            conditioning=list(_list_conditioning(lasting)) if self.attachment.config.shares_steps else (),
            training=self.layer.training,
            denoiser=self.layer,
        )
        if _has_foreign_forward(self):
            call.foreign_forward = type(self.layer).__name__
        if timesteps and _is_tensor(timesteps[0]):
            call.timestep_argument = timesteps[0]
        timestep: Any = timesteps[0] if self.reads_timestep and timesteps else None
        if pair:
            # Of the image or text that is being denoised. For the other one, pipelines pass a plain number: 0 if it is
            # finished, the highest if it is noise. Of two tensors the image's: a comparison would wait for the device.
            ends = (0, self.attachment.max_timestep)
            timestep = ([value for value in pair if _is_tensor(value) or value not in ends] or sorted(pair))[0]
        if isinstance(timestep, (int, float)):
            timestep = paddle.to_tensor([timestep])
        if _is_tensor(timestep) and len(timestep.shape) <= 1:
            call.set_timestep(timestep)
        return call


class _ReturnHook:
    """A hook before ``forward`` that puts an override around what ``to_static`` made of it.

    Other functions in its place call it themselves. It is an object, as Paddle's tracer of bytecode fails on hooks that
    are bound methods.
    """

    def __init__(self, override: DenoiserForward) -> None:
        self.override = override

    def __call__(self, layer: Layer, inputs: tuple[Any, ...]) -> None:
        override = self.override
        if override.removed_at is None and is_static_function(vars(layer).get("forward")):
            ForwardOverride.put(override)


def read_timestep(call: DenoiserCall, layer: Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Set the timestep of a call from the layer that embeds it."""
    timestep = args[0] if args else next(iter(kwargs.values()), None)
    if timestep is not None:
        call.set_timestep(timestep)


def _has_foreign_forward(override: DenoiserForward) -> bool:
    """Return whether a function of another file replaced the ``forward`` of a denoiser or of its class.

    Its file, as ``functools.wraps`` copies the name of the module. A function around ours is outside of this: where it
    skips a call, the run of steps ends.
    """
    owner = next(base for base in type(override.layer).__mro__ if "forward" in vars(base))
    functions, replaced = [vars(owner)["forward"]], override.previous
    while isinstance(replaced, ForwardOverride):
        replaced = replaced.previous
    if replaced is not None and not is_static_function(replaced):
        functions.append(getattr(replaced, "__func__", replaced))
    own_file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    codes = [getattr(function, "__code__", None) for function in functions]
    return any(code is None or code.co_filename != own_file for code in codes)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, paddle.Tensor) or paddle.is_tensor(value)


def _list_conditioning(value: Any) -> Iterator[paddle.Tensor]:
    """Yield the tensors in a call's arguments that condition the image.

    These are the text, class labels and the like, without large tensors that have height and width.
    """
    if isinstance(value, paddle.Tensor) and value.ndim <= 3:
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name != _FOREIGN_CACHE:
                yield from _list_conditioning(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _list_conditioning(item)
