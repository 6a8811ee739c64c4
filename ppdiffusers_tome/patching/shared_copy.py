"""Copies of pipelines and models that share their weights."""

import copy
from types import MethodType
from typing import Any, TypeVar

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.patching.apply import remove_tome
from ppdiffusers_tome.patching.models import is_denoiser_name
from ppdiffusers_tome.patching.slots import list_functions

T = TypeVar("T")


def shared_copy(model_or_pipe: T) -> T:
    """Copy a pipeline or model without its ToMe, sharing the weights.

    ToMe on either does not affect the other, so one can generate merged images and the other unmerged ones, in turns or
    in threads. Of a pipeline the denoisers and the schedulers are copied; the VAE, the text encoders and the rest are
    shared. A change of a weight (training, fusing LoRA, another dtype) affects both, so make it before copying.

    Args:
        model_or_pipe: as for ``apply_tome``; it keeps its ToMe.

    Returns:
        The copy, of the same class.

    Raises:
        ToMeTypeError: it is neither a pipeline nor a model.
        ToMeValueError: a function that is no method replaced a ``forward``; a copy would run the original's layers.

    Example:
        >>> merged = shared_copy(pipe).apply_tome(ratio=0.5)
        >>> merged.unet.conv_in.weight is pipe.unet.conv_in.weight, pipe.tome
        (True, None)
    """
    # One dictionary for all models, so that a layer that two of them share is one layer in the copy too.
    return remove_tome(_copy(model_or_pipe, {}))


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Copy a model, scheduler, pipeline or list; return anything else."""
    if isinstance(value, Layer):
        for path, layer in value.named_sublayers(include_self=True):
            # ``deepcopy`` binds a method to the copy.
            if not all(isinstance(function, MethodType) for function in list_functions(layer)):
                raise ToMeValueError(
                    f"{path or 'the layer'} of {type(value).__name__} has a replaced forward, as a cache of steps or "
                    "paddle.jit.to_static installs it, which would run the original's layers in a copy; copy first, "
                    "and install it on both afterwards"
                )
            # The copy of a tensor is the tensor, so it is shared.
            tensors = [*layer._parameters.values(), *layer._buffers.values(), *vars(layer).values()]
            memo |= {id(tensor): tensor for tensor in tensors if isinstance(tensor, paddle.Tensor)}
        return copy.deepcopy(value, memo)
    if hasattr(value, "set_timesteps"):
        return copy.deepcopy(value, memo)
    if isinstance(value, (list, tuple)):
        return type(value)([_copy(item, memo) for item in value])
    if id(value) not in memo and hasattr(type(value), "components"):
        memo[id(value)] = pipe = copy.copy(value)
        for attribute, component in vars(value).items():
            if is_denoiser_name(attribute):
                # setattr would write the classes' names into the pipeline's config again.
                vars(pipe)[attribute] = _copy(component, memo)
    return memo.get(id(value), value)
