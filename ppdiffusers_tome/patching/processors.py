"""Attention of ppdiffusers: the keys and maps of its processors."""

from functools import cache
from typing import Any

from ppdiffusers_tome.patching.adapters.adapter import CROSS_ATTENTION, ROLES

# Processors that compute keys by ``to_k`` from the attention's own tokens, for each image separately.
_SELF_CONTAINED = {
    "AttnProcessor", "AttnProcessor2_5", "LoRAAttnProcessor", "LoRAXFormersAttnProcessor", "SlicedAttnProcessor",
    "XFormersAttnProcessor", "SlicedProcessor",  # the last is of compilation/slices.py
}  # fmt: skip
# Processors that store attention maps, which their pipelines read as images, and the roles of that attention:
# Self-Attention Guidance, Attend-and-Excite (which drops those of self-attention), Pix2Pix Zero. Maps of merged tokens
# would differ in size.
_MAP_STORING = {
    "CrossAttnStoreProcessor": ROLES,
    "AttendExciteAttnProcessor": (CROSS_ATTENTION,),
    "Pix2PixZeroAttnProcessor": ROLES,
}


def accepts_group_sizes(attention: Any) -> bool:
    """Return whether group sizes may be added to an attention's mask.

    They may where the mask is for the keys of the block's own tokens alone; that of an unknown processor may not be.
    """
    return find_processor(attention).__name__ in _SELF_CONTAINED and getattr(attention, "add_k_proj", None) is None


def find_processor(layer: Any) -> type:
    """Return the class of a layer's attention processor, or of None."""
    return type(getattr(layer, "processor", None))


@cache
def stores_maps(processor: type, role: str) -> bool:
    """Return whether such attention in a role stores maps for its pipeline."""
    return any(role in _MAP_STORING.get(cls.__name__, ()) for cls in processor.__mro__)
