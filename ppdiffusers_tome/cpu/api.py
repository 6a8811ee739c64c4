"""Attention and convolutions on a CPU by onnxruntime's kernels.

They are off by default and independent of ToMe.
"""

from typing import TypeVar

from ppdiffusers_tome.cpu.attention import replace_processors, restore_processors
from ppdiffusers_tome.cpu.convolution import replace_convolutions, restore_convolutions
from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.patching.models import list_models

T = TypeVar("T")


def enable_cpu_kernels(model_or_pipe: T) -> T:
    """Compute attention and convolutions on a CPU with onnxruntime.

    Results are equal to rounding. Only layers with ppdiffusers' plain ``AttnProcessor``, and two-dimensional
    convolutions of Paddle's or ppdiffusers' own ``forward``, change; the user's processors and functions, and
    ppdiffusers' other processors (xformers, sliced, LoRA, IP-Adapter, ...), stay. Where gradients are recorded, in
    traced programs, on a GPU, in other types than float32 and where onnxruntime does not work, layers compute as
    before. It works before and after ``apply_tome``.

    Args:
        model_or_pipe: a ppdiffusers pipeline, of which all models change, the VAE too; a model, or a part of a model.

    Returns:
        ``model_or_pipe``, so that calls chain.

    Raises:
        ToMeTypeError, ToMeValueError: ``model_or_pipe`` is neither a pipeline nor a model, or has no such layer.

    Example:
        >>> pipe = enable_cpu_kernels(pipe).apply_tome(ratio=0.5)
    """
    models = [model for _, model in list_models(model_or_pipe, denoisers_only=False)]
    if not sum(replace_processors(model) + replace_convolutions(model) for model in models):
        raise ToMeValueError(
            f"{type(model_or_pipe).__name__} has nothing that onnxruntime could compute: neither attention with "
            "ppdiffusers' plain AttnProcessor, which set_attn_processor(AttnProcessor()) sets, nor a Conv2D; give a "
            "model with such layers, such as a Stable Diffusion UNet"
        )
    return model_or_pipe


def disable_cpu_kernels(model_or_pipe: T) -> T:
    """Restore the attention processors that stood there and Paddle's convolutions."""
    for _, model in list_models(model_or_pipe, denoisers_only=False):
        restore_processors(model)
        restore_convolutions(model)
    return model_or_pipe
