"""A second pipeline or model on the same weights, so that each can have ToMe of its own."""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any, TypeVar

import paddle
from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.patching.apply import remove_tome
from ppdiffusers_tome.patching.models import is_denoiser_name, list_models

T = TypeVar("T")


def shared_copy(model_or_pipe: T) -> T:
    """A second pipeline or model, without ToMe, that takes no memory for weights: they are the first one's.

    What is applied to either is not applied to the other, so one draws merged pictures and the other unmerged ones,
    in turns or in threads. Of a pipeline the denoisers and the schedulers are new; the VAE, the text encoders and the
    rest are those of the first. Whatever writes to a weight (training, fusing LoRA, another dtype) is seen by both, so
    do it before copying.

    Args:
        model_or_pipe: as for ``apply_tome``; it is left as it is, with its ToMe where it has one.

    Returns:
        One of the same class.

    Raises:
        ToMeTypeError: it is neither a pipeline nor a model.
        ToMeValueError: a layer runs a function of its own in place of its class's ``forward``, as caches of steps
            have it: that function would run the first one's layers.

    Example:
        >>> merged = shared_copy(pipe).apply_tome(ratio=0.5)
        >>> merged.unet.conv_in.weight is pipe.unet.conv_in.weight, pipe.tome
        (True, None)
    """
    weights: dict[int, Any] = {}
    for name, model in list_models(model_or_pipe):
        for path, layer in model.named_sublayers(include_self=True):
            if "forward" in vars(layer) and not isinstance(vars(layer)["forward"], MethodType):
                where = ".".join(part for part in (name, path) if part) or type(layer).__name__
                raise ToMeValueError(
                    f"{where} has a forward of its own, as a cache of steps puts there, which a copy cannot take "
                    "along; take that off first (disable_cache()), and put it on both afterwards"
                )
            held = [*layer._parameters.values(), *layer._buffers.values(), *vars(layer).values()]
            weights |= {id(tensor): tensor for tensor in held if isinstance(tensor, paddle.Tensor)}
    # What deepcopy finds in this dictionary it takes as copied already. One for all: what is shared stays shared.
    return remove_tome(_copied(model_or_pipe, weights))


def _copied(held: Any, weights: dict[int, Any]) -> Any:
    """A model, a scheduler, a pipeline or a list of such, anew; anything else as it is."""
    if isinstance(held, Layer) or hasattr(held, "set_timesteps"):
        return copy.deepcopy(held, weights)
    if isinstance(held, (list, tuple)):
        return type(held)([_copied(each, weights) for each in held])
    if id(held) not in weights and hasattr(type(held), "components"):
        weights[id(held)] = other = copy.copy(held)
        # Not by setattr, which would write the names of classes into the pipeline's config again.
        for name in filter(is_denoiser_name, vars(held)):
            vars(other)[name] = _copied(vars(held)[name], weights)
    return weights.get(id(held), held)
