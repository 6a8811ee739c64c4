"""Overrides of blocks and levels that the cache over steps skips."""

from dataclasses import dataclass
from typing import Any

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.patching.adapters.adapter import UNETS
from ppdiffusers_tome.patching.arguments import find_arguments
from ppdiffusers_tome.patching.blocks import MergeableBlock, find_blocks
from ppdiffusers_tome.patching.denoisers import is_controlnet
from ppdiffusers_tome.patching.layers import is_a
from ppdiffusers_tome.patching.override import Original, Override
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.step_cache.cached_call import map_tensors, open_cached_call


@dataclass(eq=False, repr=False)
class ChainOverride(Override):
    """The override of a block in a chain of consecutive blocks.

    The whole chain has one residual, its output minus its input (FreqCa, arXiv 2510.08669). In a skipped step every
    block returns its input, and the last one returns the input of the first plus the predicted residual. That sum is
    made where the first block runs, as a model may change tokens in place between two blocks (FLUX with a ControlNet).
    """

    chain: str  # its path in the denoiser
    outputs: tuple[int | str, ...]  # of the block, see ``BlockAdapter``
    is_last: bool

    def run(self, call: DenoiserCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run the block, or return what the chain is predicted to."""
        cached = open_cached_call(call)
        inputs = None if cached is None else find_arguments(self.layer, args, kwargs, self.outputs)
        if cached is None or inputs is None:
            return original(*args, **kwargs)
        if cached.skips(self.chain):
            cached.has_skipped = True
            if self.chain not in cached.chain_outputs:
                cached.chain_outputs[self.chain] = [
                    None if residual is None else tokens + residual
                    for tokens, residual in zip(inputs, cached.predict(self.chain), strict=True)
                ]
            outputs = cached.chain_outputs.pop(self.chain) if self.is_last else inputs
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        if cached.stores_values:
            cached.chain_inputs.setdefault(self.chain, inputs)
        output = original(*args, **kwargs)
        first = cached.chain_inputs.pop(self.chain, None) if self.is_last else None
        if first is not None:
            outputs = output if isinstance(output, (list, tuple)) else (output,)
            added = (None if new is None else new - old for new, old in zip(outputs, first, strict=False))
            cached.store(self.chain, tuple(added))
        return output


@dataclass(eq=False, repr=False)
class LevelOverride(Override):
    """The override of a level that skipped steps omit (DeepCache, CVPR 2024).

    A skipped step uses the outputs of all such levels of a ControlNet, and of a UNet that of the last alone. With
    ``is_used`` it is copied, as what follows may change it in place (FreeU); others are of the last computed step.
    """

    path: str
    is_used: bool

    def run(self, call: DenoiserCall, original: Original, /, *args: Any, **kwargs: Any) -> Any:
        """Run the level, or return its predicted output."""
        cached = open_cached_call(call)
        if cached is None:
            return original(*args, **kwargs)
        if cached.skips(self.path):
            cached.has_skipped = True
            predicted = cached.predict(self.path)
            return map_tensors(paddle.clone, predicted) if self.is_used else predicted
        output = original(*args, **kwargs)
        if cached.stores_values:
            value = map_tensors(paddle.clone, output) if self.is_used else output
            cached.store(self.path, value, has_slope=self.is_used)
        return output


def create_cache_overrides(state: DenoiserState, denoiser: Layer) -> list[Override]:
    """Create the overrides of a denoiser's layers that skipped steps omit.

    Every block that an adapter describes is in a chain, also if its tokens do not merge now. Blocks with other layers
    between them, which would run in a skipped step, are chains of their own. A ControlNet hands on what its levels and
    blocks return, so all of these are predicted.
    """
    levels = _create_level_overrides(state, denoiser)
    skipped = {id(layer) for level in levels for layer in level.layer.sublayers(include_self=True)}
    chains: dict[str, list[MergeableBlock]] = {}
    for block in find_blocks(denoiser):
        if id(block.layer) not in skipped:
            is_alone = is_controlnet(denoiser) or block.adapter.block_is_parent
            container = block.path if is_alone else block.path.rpartition(".")[0]
            chains.setdefault(container, []).append(block)
    return levels + [
        ChainOverride(state, block.layer, chain, block.adapter.outputs, is_last=block is blocks[-1])
        for chain, blocks in chains.items() for block in blocks
    ]  # fmt: skip


def _create_level_overrides(state: DenoiserState, denoiser: Layer) -> list[LevelOverride]:
    """Create the overrides of the levels that skipped steps omit."""
    unet = UNETS[0]  # that of ppdiffusers, whose levels are layers with a ``forward``
    down, up = (
        [(f"{name}.{number}", level) for number, level in enumerate(getattr(denoiser, name, ()))]
        for name in (unet.down, unet.up)
    )
    middle = [(unet.middle, layer) for layer in [getattr(denoiser, unet.middle, None)] if layer is not None]
    if is_controlnet(denoiser):
        return [LevelOverride(state, level, path, is_used=True) for path, level in [*down, *middle]]
    coarse = [*down[1:], *middle, *up[:-1]] if up else []
    if any(is_a(level, "LayerList") for _, level in coarse):  # the UNet runs what is in it
        return []
    return [LevelOverride(state, level, path, is_used=level is coarse[-1][1]) for path, level in coarse]
