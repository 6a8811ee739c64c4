"""Models and blocks of ppdiffusers in which nothing merges, with the reasons."""

from paddle.nn import Layer

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
