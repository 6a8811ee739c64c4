"""The models and schedulers of a pipeline."""

import inspect
from collections.abc import Iterator
from typing import Any

from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeTypeError
from ppdiffusers_tome.settings.text import shorten_repr

# Components that may hold transformer blocks but do no denoising.
_NOT_DENOISERS = (
    "vae", "vqvae", "vqgan", "movq", "text_encoder", "language_model", "image_encoder", "img_encoder",
    "safety_checker", "feature_extractor",
)  # fmt: skip


def list_models(model_or_pipe: Any, *, denoisers_only: bool = True) -> Iterator[tuple[str, Layer]]:
    """Yield names and models of a pipeline, or "" and the model."""
    if isinstance(model_or_pipe, Layer):
        yield "", model_or_pipe
        return
    # On the class: `components` of an instance raises where __init__ takes arguments that are no modules.
    if inspect.isclass(model_or_pipe) or not hasattr(type(model_or_pipe), "components"):
        raise ToMeTypeError(
            "ToMe needs a ppdiffusers pipeline or model, such as a StableDiffusionPipeline or its unet; "
            f"got {shorten_repr(model_or_pipe)} of type {type(model_or_pipe).__name__}"
        )
    seen = set()
    # A pipeline of the user's own may hold models that are no registered components, also in lists.
    for name, value in list(vars(model_or_pipe).items()):  # another thread may set an attribute meanwhile
        if denoisers_only and not is_denoiser_name(name):
            continue
        several = isinstance(value, (list, tuple))
        for index, layer in enumerate(value if several else [value]):
            if isinstance(layer, Layer) and id(layer) not in seen:
                seen.add(id(layer))
                yield (f"{name}[{index}]" if several else name), layer


def is_denoiser_name(name: str) -> bool:
    """Return False for names of VAEs, text encoders and the like."""
    return not name.removeprefix("prior_").startswith(_NOT_DENOISERS)


def list_schedulers(pipe: Any, denoiser: str) -> Iterator[Any]:
    """Yield the schedulers that a pipeline has now, the denoiser's first.

    That is one named like the denoiser, as unCLIP's ``prior_scheduler``, ``decoder_scheduler`` and
    ``super_res_scheduler`` may all begin with the same timestep; ``scheduler`` is next.
    """
    attributes = dict(vars(pipe))  # another thread may set an attribute meanwhile

    def rank(name: str) -> tuple[bool, bool]:
        return not denoiser.startswith(name.removesuffix("_scheduler")), name != "scheduler"

    for scheduler in (attributes[name] for name in sorted(attributes, key=rank)):
        if hasattr(scheduler, "set_timesteps") and getattr(scheduler, "timesteps", None) is not None:
            yield scheduler
