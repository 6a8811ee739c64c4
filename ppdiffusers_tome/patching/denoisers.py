"""Denoisers: what refuses to merge, where the timestep is embedded, which family they are."""

from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.patching.adapters.adapter import UNETS
from ppdiffusers_tome.patching.layers import is_a
from ppdiffusers_tome.settings.step_schedule import CLASS_TRANSFORMER, TEXT_TRANSFORMER, UNET

_NO_GRID = "its tokens are embeddings, not a grid of image tokens"
_ROTARY = "its attention itself rotates tokens by their positions, so ToMe cannot set those of merged tokens"

_VAES = (
    "AutoencoderKL", "AsymmetricAutoencoderKL", "AutoencoderKLTemporalDecoder", "AutoencoderKL_imgtovideo",
    "AutoencoderTiny", "ConsistencyDecoderVAE", "LVDMAutoencoderKL", "VQModel", "PaellaVQModel",
)  # fmt: skip
# Class name -> the reason, a clause.
REFUSED = {
    **dict.fromkeys(_VAES, "it decodes images and runs once, not at every step"),
    "PriorTransformer": _NO_GRID,
    "UNetFlatConditionModel": _NO_GRID,
    "T5FilmDecoder": "its tokens are frames of sound in a row, not a grid",
    # A block of LVDMUNet3DModel, whose unconditional variant has no other.
    "STAttentionBlock": "its attention takes channels before tokens, and ToMe merges rows of tokens",
    "UNet1DModel": "its signal has one dimension, not a grid of tokens",
    "DiTLLaMA2DModel": _ROTARY,
    "DiTLLaMAT2IModel": _ROTARY,
    "Kandinsky3UNet": "ppdiffusers 0.29 itself cannot run it, so nothing could be checked",
}


def find_refusal(layer: Layer) -> str | None:
    """Return why nothing merges in a layer, or None."""
    return next((REFUSED[base.__name__] for base in type(layer).__mro__ if base.__name__ in REFUSED), None)


def find_timestep_layer(denoiser: Layer) -> Any | None:
    """Return the layer that is called with the timestep, or None."""
    for parent in denoiser.sublayers(include_self=True):
        # That of Stable Video Diffusion's transformers embeds the numbers of frames.
        for name, layer in parent.named_children() if not is_a(parent, "TransformerSpatioTemporalModel") else ():
            if name == "time_proj" or is_a(layer, "Timesteps"):
                return layer
    return None


def find_family(denoiser: Layer) -> str:
    """Return which of ``FAMILIES`` a denoiser or its ControlNet belongs to."""
    if any(getattr(denoiser, parts.down, None) is not None for parts in UNETS):
        return UNET
    is_class_conditional = getattr(getattr(denoiser, "config", None), "norm_type", None) == "ada_norm_zero"
    return CLASS_TRANSFORMER if is_class_conditional else TEXT_TRANSFORMER


def is_controlnet(denoiser: Layer) -> bool:
    """Return whether a denoiser is a ControlNet or VCtrl."""
    return any("ControlNet" in cls.__name__ or cls.__name__ == "VCtrlModel" for cls in type(denoiser).__mro__)
